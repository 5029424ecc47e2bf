from girsanov.cli import main

main()
