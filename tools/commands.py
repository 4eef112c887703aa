"""The commands of ./workshop, as data; the launcher reads this first, so any Python 3 can."""

COMMANDS = (
    ("run", "train every stage in turn and show the ladder: a table and a chart"),
    ("exercise", "make a stage's change yourself: its task, and the script before it"),
    ("check", "is your exercise right, and is it faster? Alone: the score card"),
    ("bench", "06 against Keras's model.fit, on the same CNN, in turns"),
    ("results", "show the last run; --keep and --write put it into the READMEs"),
    ("scale", "train one stage on 1, 2, ... ranks and show how it scales"),
    ("report", "show where a profiled run spent its time; --html, --json, --trace write files"),
    ("xray", "what a GPU would see of each stage's step, found without one: kernels, copies"),
    ("test", "run the whole test suite, Horovod included"),
    ("data", "put verified MNIST at data/mnist.npz"),
    ("setup", "make the Python environment only; --test and --horovod add to it"),
    ("doctor", "check this machine, and say how to fix what is wrong; installs nothing"),
)
NAMES = tuple(name for name, _ in COMMANDS)


def usage():
    """The text of `./workshop --help`."""
    lines = ["usage: ./workshop COMMAND [options]", ""]
    lines += ["  " + name.ljust(10) + what for name, what in COMMANDS]
    lines += ["", "./workshop COMMAND --help says more about one of them."]
    return "\n".join(lines)
