import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        print(f"Overriding config with {arg}:")
        with open(arg) as f:
            print(f.read())
        exec(open(arg).read())
    else:
        key, val = arg.split("=")
        key = key[2:]
        if key in globals():
            try:
                attempt = literal_eval(val)
            except (SyntaxError, ValueError):
                attempt = val
            globals()[key] = attempt
        else:
            raise ValueError(f"Unknown config key: {key}")
