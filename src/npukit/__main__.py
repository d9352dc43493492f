from npukit.cli import main

main()
