from girsanov.cli import main

if __name__ == "__main__":  # workers of a Dask cluster import this module too
    main()
