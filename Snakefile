# The study as a batch: the world, then papermill runs of the notebooks, then the tables.
#
#   make study                                    the default runs
#   make grid METHODS="infonce" RATES="0 0.5" KINDS="shuffle" SEEDS="0 1"
#
# What counts as done: results/study/runs/NAME.json, the record that notebook 07 copies there last of all, and the
# marks in results/study/done/. The executed notebooks are logs, so the one that stopped stays readable and never counts.
# A notebook or a file of the package newer than a result runs that notebook again; it trains only what the change
# really touched, since a run's id holds a fingerprint of the code that computes it.

import ast
import hashlib
import json
import os
import re
import sys
from pathlib import Path
from shlex import quote

STUDY = f"{os.environ.get('CIRKIT_RESULTS') or 'results'}/study"
CACHE = os.environ.get("CIRKIT_CACHE") or ".cache"
WORLDS = ("garments", "scenes")

# seconds of one step with one thread, two at once on two cores; for the announcements only
SECONDS = {"world": 30, "task_and_data": 30, "noise_injection": 40, "train": 60, "look": 70, "report": 20}
SLOW_LOOKS = {"11_comparison": 150, "12_satisfaction": 130, "13_own_data": 100}  # these time or train something themselves
SLOW_METHODS = {"conesep-released": 130, "conesep-paper": 90, "qure": 85, "dqe": 140}


# --- settings ---------------------------------------------------------------------------------------------


def several(name, default):
    """The words of a setting, in their order, each once."""
    value = config.get(name, default)
    return list(dict.fromkeys(("" if value is None else str(value)).replace(",", " ").split()))


def single(name, default):
    value = config.get(name)
    return default if value is None else str(value)


def refuse(sentence):
    sys.exit(f"cirkit: {sentence}")


def checked_rate(word):
    try:
        rate = float(word)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        refuse(f"RATES: {word!r} is not a noise rate between 0 and 1.")
    return rate


def checked_lr(word):
    try:
        lr = float(word)
    except ValueError:
        lr = -1.0
    if not 0 <= lr < 1:
        refuse(f"LR: {word!r} is not a learning rate.")
    return lr


def checked_number(setting, word):
    if not word.isdecimal():
        refuse(f"{setting}: {word!r} is not a whole number from 0 on.")
    return int(word)


def names_in(file, variable):
    """Keys or items of a literal in a file of the package, read without importing it."""
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        if isinstance(target, ast.Name) and target.id == variable:
            items = node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts
            return [item.value for item in items if isinstance(item, ast.Constant)]
    raise LookupError(f"{file} has no literal {variable}")


def checked_name(setting, word, known):
    if word not in known:
        refuse(f"{setting}: {word!r} is unknown; choose among {', '.join(known)}.")
    return word


def place_name(word):
    """What stands for a folder in a run's name: its last part and, as others may share that, a few digits."""
    return f"{re.sub(r'[^A-Za-z0-9_]+', '_', Path(word).name)}_{hashlib.sha256(word.encode()).hexdigest()[:6]}"


SETTINGS = {
    "METHODS", "RATES", "KINDS", "SEEDS", "DATASET", "DATA_ROOT", "BACKBONE", "DEVICE", "LR", "GATE", "THREADS",
}  # fmt: skip
if unknown := sorted(set(config) - SETTINGS):
    refuse(f"there is no setting {', '.join(unknown)}; the settings are {', '.join(sorted(SETTINGS))}.")

METHODS = names_in("cirkit/methods/__init__.py", "REGISTRY")
KINDS = names_in("cirkit/noise_kinds.py", "KINDS")
DATASETS = names_in("cirkit/data/splits.py", "SOURCES")
PRESETS = names_in("cirkit/presets.py", "PRESETS")

DATASET = checked_name("DATASET", single("DATASET", "garments"), DATASETS)
# each world has a backbone that was pretrained on its pictures and words
BACKBONE = single("BACKBONE", "tiny-scenes" if DATASET == "scenes" else "tiny")
ON_HUB = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", BACKBONE) and not Path(BACKBONE).parent.exists()
if BACKBONE not in PRESETS and not Path(BACKBONE).exists() and not ON_HUB:
    refuse(f"BACKBONE: {BACKBONE!r} is neither a folder, a file, a hub id, nor one of {', '.join(PRESETS)}.")
DATA_ROOT = single("DATA_ROOT", "")
DEVICE = single("DEVICE", "")
LR = checked_lr(single("LR", "0"))  # 0: each method's own
GATE = single("GATE", "")  # evidence by which rows are kept from training; "": none are
if GATE:
    checked_name("GATE", GATE, names_in("cirkit/evidence.py", "EVIDENCE"))
# threads of one run; as many runs go side by side as fit into the cores. With one thread a sum is always taken in the
# same order, so that numbers do not depend on how many cores a machine has.
THREADS = checked_number("THREADS", single("THREADS", "1")) or 1
if DATASET not in WORLDS and not DATA_ROOT:
    refuse(f"DATASET: {DATASET!r} needs DATA_ROOT, the folder with its annotations.")
if DATA_ROOT and not Path(DATA_ROOT).expanduser().is_dir():
    refuse(f"DATA_ROOT: there is no folder {DATA_ROOT}.")
if not re.fullmatch(r"|auto|cpu|mps|cuda(:\d+)?", DEVICE):
    refuse(f"DEVICE: {DEVICE!r} is none of auto, cpu, cuda, cuda:1, mps.")
if BACKBONE == "small" and not Path(os.environ.get("CIRKIT_WEIGHTS") or f"{CACHE}/weights", "small").is_dir():
    refuse("BACKBONE: the weights of 'small' are not there: `make small` makes them, in about an hour.")


def run_of(method, kind, rate, seed):
    """Name and notebook parameters of one training run.

    Every seed draws its own noise too, so that spread over seeds holds both; seed 0 draws with 42, as the papers do.
    """
    backbone = BACKBONE if BACKBONE in PRESETS else place_name(BACKBONE)
    data = f"{DATASET}-{place_name(DATA_ROOT)}" if DATA_ROOT else DATASET
    extra = f"{f'-lr{LR:g}' if LR else ''}{f'-gate_{GATE}' if GATE else ''}"
    name = f"{method}-{backbone}-{data}-{kind}-{rate:g}{extra}-seed{seed}"
    parameters = {
        "METHOD": method,
        "BACKBONE": BACKBONE,
        "DATASET": DATASET,
        "NOISE_KIND": kind,
        "NOISE_RATE": rate,
        "NOISE_SEED": 42 + seed,
        "SEED": seed,
    }
    if DATA_ROOT:
        parameters["DATA_ROOT"] = DATA_ROOT
    if LR:
        parameters["LR"] = LR
    if GATE:
        parameters["GATE"] = GATE
    return name, parameters


# what `make study` trains where nothing is chosen: enough for each notebook, and for the first comparison
STUDY_RUNS = [
    *((method, "shuffle", rate) for rate in (0.5, 0.0) for method in ("conesep-released", "dqe", "qure")),
    ("conesep-paper", "shuffle", 0.5),
    *((method, "shuffle", rate) for method in ("infonce", "rcl") for rate in (0.0, 0.5)),
    *(("conesep-adapted", "shuffle", rate) for rate in (0.0, 0.2, 0.5, 0.8)),
    ("infonce", "hard", 0.5),
]
PLAIN = DATASET == "garments" and BACKBONE == "tiny" and not DATA_ROOT and not LR and not GATE
if {"METHODS", "RATES", "KINDS", "SEEDS"} & set(config) or not PLAIN:
    kinds = [checked_name("KINDS", kind, KINDS) for kind in several("KINDS", "shuffle")]
    CHOSEN = dict(
        run_of(checked_name("METHODS", method, METHODS), kind, rate, seed)
        for method in several("METHODS", "infonce")
        for kind in kinds
        for rate in map(checked_rate, several("RATES", "0 0.2 0.5 0.8"))
        for seed in (checked_number("SEEDS", word) for word in several("SEEDS", "0"))
        if rate or kind == kinds[0]  # without noise all kinds are one run
    )
else:
    CHOSEN = dict(run_of(*setting, 0) for setting in STUDY_RUNS)
if not CHOSEN:
    refuse("METHODS, KINDS, RATES and SEEDS must each name at least one value.")
# these notebooks look at runs on garments; they belong to the study as it is by default. With another data set or
# backbone, only what was chosen is run.
LOOKED_AT = {
    "02_qformer_retrieval": [("infonce", "shuffle", 0.0)],
    "03_cone_histograms": [
        ("infonce", "shuffle", 0.0), ("infonce", "shuffle", 0.5), ("infonce", "hard", 0.5),
        ("conesep-adapted", "shuffle", 0.5),
    ],
    "04_boundary_estimation": [("infonce", "shuffle", 0.0), ("infonce", "shuffle", 0.5), ("infonce", "hard", 0.5)],
    "05_negative_boundary": [
        ("infonce", "shuffle", 0.5), ("conesep-paper", "shuffle", 0.5), ("conesep-adapted", "shuffle", 0.5),
    ],
    "06_targeted_unlearning": [("infonce", "shuffle", 0.5)],
    "08_qure": [("infonce", "shuffle", 0.0), ("qure", "shuffle", 0.0)],
    "09_dqe": [("infonce", "shuffle", 0.0), ("dqe", "shuffle", 0.0)],
    "10_ablations": [],
    "11_comparison": [
        *(
            (method, "shuffle", rate)
            for method in ("infonce", "rcl", "conesep-adapted", "conesep-released", "qure", "dqe") for rate in (0.0, 0.5)
        ),
        ("infonce", "hard", 0.5),
    ],
    "12_satisfaction": [
        (method, "shuffle", rate) for method in ("infonce", "rcl", "conesep-adapted", "qure", "dqe") for rate in (0.0, 0.5)
    ],
    "13_own_data": [],
}  # fmt: skip
LOOKS = {notebook: dict(run_of(*run, 0) for run in runs) for notebook, runs in LOOKED_AT.items()} if PLAIN else {}
RUNS = {name: run for part in (*LOOKS.values(), CHOSEN) for name, run in part.items()}
RESULTS = [f"{STUDY}/runs/{run}.json" for run in CHOSEN]


# --- notebooks --------------------------------------------------------------------------------------------


def parameter_names(notebook):
    """The names that a notebook's parameters cell assigns; papermill itself would accept any name."""
    if not Path(notebook).is_file():
        refuse(f"there is no {notebook} in {Path.cwd()}.")
    cells = [
        "".join(cell["source"])
        for cell in json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
        if "parameters" in cell["metadata"].get("tags", [])
    ]
    if len(cells) != 1:
        refuse(f"{notebook} has {len(cells)} cells tagged 'parameters'; it needs exactly one.")
    return set(re.findall(r"^([A-Za-z_]\w*)\s*(?::[^=\n]+)?=", cells[0], flags=re.MULTILINE))


TRAINING = "notebooks/07_training.ipynb"
SENT = {"RESULT", *({"DEVICE"} if DEVICE else ()), *(name for run in RUNS.values() for name in run)}
if lacking := sorted(SENT - parameter_names(TRAINING)):
    refuse(f"{TRAINING} has no parameter {', '.join(lacking)}: name it in the cell tagged 'parameters'.")


def as_options(parameters):
    """-p lets papermill read numbers, -r keeps text as it is."""
    return " ".join(f"{'-r' if isinstance(v, str) else '-p'} {k} {quote(str(v))}" for k, v in parameters.items())


PYTHON = quote(sys.executable)
PAPERMILL = (
    f"{PYTHON} -m papermill --kernel python3 --log-level WARNING "
    f"--{'' if sys.stderr.isatty() else 'no-'}progress-bar"
)
DEVICE_OPTION = as_options({"DEVICE": DEVICE}) if DEVICE else ""
# notebooks 00 and 01 also look at the real annotations, where they are
FASHIONIQ = "data/fashioniq"
REAL = all(Path(FASHIONIQ, folder).is_dir() for folder in ("captions", "image_splits"))
REAL_OPTION = as_options({"DATA_ROOT": FASHIONIQ}) if REAL else ""
PACKAGE = sorted(str(path) for path in Path("cirkit").rglob("*") if path.is_file() and path.suffix != ".pyc")

# Memory that a training step frees is kept for the next one: up to 8 % of a step on Linux's own allocator, for the
# same numbers; others pass over these names.
for name, size in (("MMAP_THRESHOLD", 2**30), ("TRIM_THRESHOLD", 2**32), ("TOP_PAD", 2**26)):
    os.environ.setdefault(f"MALLOC_{name}_", str(size))

# executed notebooks are to be read, not moved
os.environ.setdefault("CIRKIT_WIDGETS", "off")

# A kernel `python3` of this interpreter, found before any of that name that the user has elsewhere. It is
# quiet about its sockets, which never leave this machine, and about being stopped when the notebook ends.
kernels = Path(".snakemake", "jupyter").absolute()
(kernels / "kernels/python3").mkdir(parents=True, exist_ok=True)
argv = [sys.executable, "-m", "ipykernel_launcher", "--log-level=CRITICAL", "-f", "{connection_file}"]
kernel = {"argv": argv, "display_name": "Python 3", "language": "python", "metadata": {"debugger": True}}
described, content = kernels / "kernels/python3/kernel.json", json.dumps(kernel)
if not described.is_file() or described.read_text(encoding="utf-8") != content:  # jobs of a cluster read it meanwhile
    described.write_text(content, encoding="utf-8")
os.environ["JUPYTER_PATH"] = str(kernels)

# Snakemake's narration would drown the announcements below, and its copy of a failed command the error itself
NARRATION = ("Select jobs", "Execute ", "Touching output", "Complete log", "RuleException:\nCalledProcessError")
logger.addFilter(lambda record: not record.getMessage().startswith(NARRATION))

# say TITLE SECONDS announces a step; stopped NOTEBOOK tells where to look when papermill gave up
os.environ["CIRKIT_TITLES"] = titles = str(Path(".snakemake", "cirkit-titles").absolute())
shell.prefix(
    'say() {{ echo "$1" >> "$CIRKIT_TITLES"; n=$(grep -nxF -- "$1" "$CIRKIT_TITLES" | head -n 1 | cut -d: -f1); '
    'echo "[$n/$CIRKIT_STEPS  $(date +%H:%M:%S)] $1 (about $2 s)"; }}; '
    'stopped() {{ echo "cirkit: the notebook stopped; $1 shows where." >&2; exit 1; }}; '
)


# --- one batch at a time in a folder ----------------------------------------------------------------------

# The system frees this lock when its holder ends, in whatever way; Snakemake's own outlives a killed run. On a cluster
# each job reads this file too: they belong to the batch that holds it.
try:
    import fcntl
except ImportError:
    fcntl = None
if fcntl and workflow.is_main_process:
    Path(".snakemake").mkdir(exist_ok=True)
    batch_lock = open(".snakemake/cirkit-lock", "a+")
    try:
        fcntl.flock(batch_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        batch_lock.seek(0)
        owner = batch_lock.read().strip()
        refuse(f"another make study or make grid (process {owner}) is at work in this folder; wait until it is done.")
    batch_lock.truncate(0)
    batch_lock.write(str(os.getpid()))
    batch_lock.flush()


def seconds_of(rule, run):
    """What a step takes, for the announcements."""
    own = SLOW_METHODS.get(RUNS[run]["METHOD"]) if rule == "train" else SLOW_LOOKS.get(run)
    return own or SECONDS[rule]


def announce():
    """Say what is to be done, and about how long it takes."""
    order = [*SECONDS, *RUNS, *LOOKS]
    names = [
        (job.rule.name, job.wildcards.get("run") or job.wildcards.get("look") or "")
        for job in workflow.dag.needrun_jobs()
    ]
    steps = sorted(
        (step for step in names if step[0] in SECONDS), key=lambda step: [order.index(s) for s in step if s]
    )
    at_once = workflow.nodes or max(1, workflow.cores // THREADS)  # nodes: jobs at once on a cluster
    minutes = sum(seconds_of(*step) for step in steps) / at_once / 60
    print(f"To do: {len(steps)} steps, about {minutes:.0f} min; {at_once} at once, threads each: {THREADS}")
    for rule, run in steps:
        print(f"    {rule:<16} {run}")
    sys.stdout.flush()
    os.environ["CIRKIT_STEPS"] = str(len(steps))
    Path(titles).unlink(missing_ok=True)


onstart:
    if workflow.is_main_process:
        announce()


onerror:
    if missing := [run for run in CHOSEN if not Path(f"{STUDY}/runs/{run}.json").is_file()]:
        print(f"cirkit: {len(missing)} of {len(CHOSEN)} runs have no result:")
        for run in missing:
            log = Path(f"{STUDY}/notebooks/07_training-{run}.ipynb")
            print(f"    {run}  ({f'see {log}' if log.is_file() else 'not started'})")
    print("cirkit: not everything was done. What is finished is kept; the same command goes on from there.")


# --- steps ------------------------------------------------------------------------------------------------


def world(name):
    """The mark of a drawn world. Its name holds a digest of the files that draw it: a mark that is there but older than
    they are would make Snakemake draw the world and, in that call, nothing else."""
    files = sorted(Path("cirkit/data").glob(f"{name[:-1]}*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:10]
    return ancient(f"{CACHE}/worlds/{name}-{digest}.drawn")


# Both name the runs beside the report: an old report alone would not notice a run that it lacks.
rule study:
    input:
        RESULTS,
        f"{STUDY}/done/00_task_and_data",
        f"{STUDY}/done/01_noise_injection",
        [f"{STUDY}/done/{notebook}" for notebook in LOOKS],
        f"{STUDY}/done/report",
    default_target: True


rule grid:
    input:
        RESULTS,
        f"{STUDY}/done/report",


rule world:
    output:
        touch(f"{CACHE}/worlds/{{name}}-{{digest}}.drawn"),
    wildcard_constraints:
        name="|".join(WORLDS),
    threads: THREADS
    shell:
        'say "world {wildcards.name}: drawing its images" {SECONDS[world]}; '
        "{PYTHON} -c 'from cirkit.data.{wildcards.name} import build_{wildcards.name} as build; build()'"


rule task_and_data:
    input:
        notebook="notebooks/00_task_and_data.ipynb",
        package=PACKAGE,
        worlds=[world(name) for name in WORLDS],
    output:
        touch(f"{STUDY}/done/00_task_and_data"),
    log:
        f"{STUDY}/notebooks/00_task_and_data.ipynb",
    params:
        options=REAL_OPTION,
    threads: THREADS
    priority: 3
    shell:
        'say "notebook 00, task and data" {SECONDS[task_and_data]}; '
        "{PAPERMILL} {input.notebook} {log:q} {params.options} || stopped {log:q}"


rule noise_injection:
    input:
        notebook="notebooks/01_noise_injection.ipynb",
        package=PACKAGE,
        world=world("garments"),
    output:
        touch(f"{STUDY}/done/01_noise_injection"),
    log:
        f"{STUDY}/notebooks/01_noise_injection.ipynb",
    params:
        options=REAL_OPTION,
    threads: THREADS
    priority: 3
    shell:
        'say "notebook 01, noise injection" {SECONDS[noise_injection]}; '
        "{PAPERMILL} {input.notebook} {log:q} {params.options} {DEVICE_OPTION} || stopped {log:q}"


rule train:
    input:
        notebook=TRAINING,
        package=PACKAGE,
        world=world(DATASET) if DATASET in WORLDS else [],
    output:
        f"{STUDY}/runs/{{run}}.json",
    log:
        f"{STUDY}/notebooks/07_training-{{run}}.ipynb",
    params:
        options=lambda wildcards: as_options(RUNS[wildcards.run]),
    resources:
        seconds=lambda wildcards: seconds_of("train", wildcards.run),
    threads: THREADS
    priority: 2
    shell:
        'say "notebook 07, training: {wildcards.run}" {resources.seconds}; '
        "{PAPERMILL} {input.notebook} {log:q} {params.options} {DEVICE_OPTION} -r RESULT {output:q} || stopped {log:q}"


rule look:
    input:
        notebook="notebooks/{look}.ipynb",
        package=PACKAGE,
        world=world("garments"),
        runs=lambda wildcards: [f"{STUDY}/runs/{run}.json" for run in LOOKS[wildcards.look]],
    output:
        touch(f"{STUDY}/done/{{look}}"),
    log:
        f"{STUDY}/notebooks/{{look}}.ipynb",
    wildcard_constraints:
        look="|".join(LOOKED_AT),
    params:
        options=as_options({"BACKBONE": BACKBONE}),
    resources:
        seconds=lambda wildcards: seconds_of("look", wildcards.look),
    threads: THREADS
    priority: 3
    shell:
        'say "notebook {wildcards.look}" {resources.seconds}; '
        "{PAPERMILL} {input.notebook} {log:q} {params.options} {DEVICE_OPTION} || stopped {log:q}"


rule report:
    input:
        package=PACKAGE,
        runs=RESULTS,
    output:
        touch(f"{STUDY}/done/report"),
    params:
        study=STUDY,
    threads: THREADS
    shell:
        'say "tables and figures" {SECONDS[report]}; '
        "{PYTHON} -m cirkit.publish {params.study:q}"
