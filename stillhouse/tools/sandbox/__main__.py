from stillhouse.tools.sandbox.server import main

main()
