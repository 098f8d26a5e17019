from catalog.row_reader.server import main

if __name__ == "__main__":
    main()
