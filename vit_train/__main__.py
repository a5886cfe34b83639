"""`python -m vit_train`: the command `vit-train`."""

from main import program

if __name__ == "__main__":
    program()
