"""The guard inside a user's Python: a program can read what it wrote, and the user's files do not change."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.inject import slurmwrap_step

INJECT = Path(slurmwrap_step.__file__).parent
PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")) or [Path(sys.executable)]

Guarded = Callable[..., str]

EVERYTHING = """
import os, sys, glob, io, logging, pathlib, pickle, shutil, sqlite3, tempfile

os.makedirs("out/ckpt")
with open("out/ckpt/x", "w") as f: f.write("hi")
assert open("out/ckpt/x").read() == "hi" and os.path.isfile("out/ckpt/x") and os.listdir("out") == ["ckpt"]

with open("config.yaml", "a") as f: f.write("bs: 2\\n")
assert pathlib.Path("config.yaml").read_text() == "lr: 1\\nbs: 2\\n"
with open("data/a.txt", "r+") as f: f.write("A")
assert io.open("data/a.txt").read() == "A"
os.rename("config.yaml", "new.yaml")
assert not os.path.exists("config.yaml") and open("new.yaml").read() == "lr: 1\\nbs: 2\\n"
assert sorted(os.listdir(".")) == ["data", "new.yaml", "out"]

os.remove("data/a.txt")
assert os.listdir("data") == ["deep"] and not os.path.lexists("data/a.txt")
shutil.rmtree("data")
assert not os.path.isdir("data") and glob.glob("data/*") == []
try: open("data/deep/b.txt")
except FileNotFoundError: pass
else: raise SystemExit("a removed file was read")
os.mkdir("data"); assert os.listdir("data") == []

p = pathlib.Path("res"); p.mkdir(); (p / "j.json").write_text("{}")
assert [q.name for q in p.iterdir()] == ["j.json"] and list(p.glob("*.json")) == [p / "j.json"]
shutil.copytree("out", "out2")
assert [(d, f) for _, d, f in os.walk("out2")] == [(["ckpt"], []), ([], ["x"])]
os.replace("out2/ckpt/x", "out2/ckpt/y"); shutil.move("out2", "out3")
assert glob.glob("out3/*/*") == ["out3/ckpt/y"]
os.symlink("new.yaml", "link"); assert open("link").read().startswith("lr") and os.readlink("link")
os.unlink("link"); assert not os.path.lexists("link")
os.link("new.yaml", "hard"); assert os.path.exists("hard")

d = os.open("raw", os.O_WRONLY | os.O_CREAT, 0o644); os.write(d, b"1"); os.close(d)
assert os.stat("raw").st_size == 1 and os.path.getsize("raw") == 1
os.truncate("raw", 0); assert os.path.getsize("raw") == 0
os.utime("new.yaml"); os.chmod("new.yaml", 0o600); pathlib.Path("t").touch(); os.remove("t")
for bad, call in ((FileExistsError, lambda: os.mkdir("res")), (FileExistsError, lambda: open("raw", "x")),
                  (FileNotFoundError, lambda: open("no/such/f", "w")), (FileNotFoundError, lambda: os.remove("no")),
                  (OSError, lambda: os.rmdir("res")), (FileNotFoundError, lambda: os.listdir("nothing"))):
    try: call()
    except bad: pass
    else: raise SystemExit("no %s" % bad)

db = sqlite3.connect("db.sqlite"); db.execute("create table t(a)"); db.commit(); db.close()
assert sqlite3.connect("db.sqlite").execute("select count(*) from t").fetchall() == [(0,)]
with tempfile.TemporaryDirectory() as d: open(d + "/x", "w").close()
with tempfile.NamedTemporaryFile(dir=".") as f: f.write(b"x")
logging.basicConfig(filename="run.log"); logging.warning("seen"); assert "seen" in open("run.log").read()
assert pickle.loads(pickle.dumps(os.stat)) is os.stat and pickle.loads(pickle.dumps(open)) is open
with open(b"bytes.bin", "wb") as f: f.write(b"1")
assert os.path.exists(b"bytes.bin") and b"bytes.bin" in os.listdir(b".")
os.chdir("res"); open("inside", "w").close(); assert os.path.exists("inside"); os.chdir("/")
sys.stdout.write("ok\\n")
"""


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_a_program_sees_its_own_changes_and_the_users_files_stay_unchanged(
    python: Path, run_guarded_ok: Guarded
) -> None:
    assert run_guarded_ok(EVERYTHING, python=python) == "ok\n"


PLACES = r"""
import ctypes, dbm, importlib.util, os, pathlib, runpy, shelve, sqlite3, stat, subprocess, sys

here = os.getcwd()
os.makedirs("outputs/run/1")
os.chdir("outputs/run/1")  # as Hydra does
assert os.getcwd() == here + "/outputs/run/1" == os.path.abspath(".") and pathlib.Path.cwd().name == "1"
assert open("../../../config.yaml").read() == "lr: 1\n" and "config.yaml" in os.listdir("../../..")
assert [e.name for e in os.scandir("../..")] == ["run"] and os.stat("../../../data/a.txt").st_size == 1
with open("ck", "w") as f: f.write("1")
with open("../../../data/new", "w") as f: f.write("2")
child = "import os; print(os.getcwd() + open('../../../data/new').read())"
said = subprocess.check_output([sys.executable, "-c", child])
assert said.decode().split() == [here + "/outputs/run/12"], said
os.chdir(here)
places = (("ck", "outputs/run/1"), ("outputs/run/1/ck", here))
shown = [subprocess.check_output(["cat", name], cwd=folder) for name, folder in places]
assert shown == [b"1", b"1"]
assert open("config.yaml").read() == "lr: 1\n" and open("outputs/run/1/ck").name == "outputs/run/1/ck"
assert sorted(os.listdir("data")) == ["a.txt", "deep", "new"] and stat.S_ISDIR(os.stat("data").st_mode)

os.symlink("run/1", "outputs/latest")
assert os.readlink("outputs/latest") == "run/1" and open("outputs/latest/ck").read() == "1"
assert os.path.realpath("outputs/latest") == here + "/outputs/run/1"
os.unlink("outputs/latest")
os.symlink(here + "/outputs/run", "last")
assert os.readlink("last") == here + "/outputs/run" and os.listdir("last") == ["1"]
for call, error in ((lambda: os.remove("outputs"), "IsADirectoryError"),
                    (lambda: os.remove("data"), "IsADirectoryError"),
                    (lambda: os.rmdir("outputs/run/1/ck"), "NotADirectoryError"),
                    (lambda: os.rmdir("outputs"), "OSError"),
                    (lambda: os.listdir("outputs/run/1/ck"), "NotADirectoryError")):
    try: call()
    except OSError as raised: assert type(raised).__name__ == error, (error, raised)
    else: raise AssertionError(error)
assert os.listdir("outputs") == ["run"]

sqlite3.connect("file:m.db?mode=rwc", uri=True).execute("create table t(a)").close()
assert sqlite3.connect("file:m.db?mode=ro", uri=True).execute("select count(*) from t").fetchall() == [(0,)]
with shelve.open("shelf") as s: s["a"] = 1
with shelve.open("shelf") as s: assert s["a"] == 1

os.makedirs("gen/made")
for name, text in (("__init__", "from .sub import Z"), ("sub", "Z = 9"), ("script", "import sys; R = 5")):
    with open("gen/made/%s.py" % name, "w") as f: f.write(text)
sys.path.append("gen")
import made
assert made.Z == 9 and runpy.run_path("gen/made/script.py")["R"] == 5
assert importlib.util.find_spec("made.sub") and not importlib.util.find_spec("made.none")
spec = importlib.util.spec_from_file_location("other", "gen/made/sub.py")
other = importlib.util.module_from_spec(spec); spec.loader.exec_module(other)
assert other.Z == 9 and ctypes.CDLL(None)
print("ok")
"""


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_paths_links_and_imports_work_in_directories_the_program_made(python: Path, run_guarded_ok: Guarded) -> None:
    assert run_guarded_ok(PLACES, python=python) == "ok\n"


def test_scratch_directories_are_written_directly(run_guarded_ok: Guarded, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    run_guarded_ok(f"open('{scratch}/x', 'w').write('x')")
    assert (scratch / "x").read_text() == "x"


def test_another_process_of_the_trial_sees_the_changes(run_guarded_ok: Guarded) -> None:
    run_guarded_ok("open('first', 'w').write('1'); import os; os.remove('config.yaml')")
    assert run_guarded_ok("import os; print(open('first').read(), os.path.exists('config.yaml'))") == "1 False\n"


def test_invalid_file_operations_raise_the_usual_errors(run_guarded_ok: Guarded) -> None:
    code = """
    import os
    for call in (lambda: open("/no/such/directory/file", "w"), lambda: open("data", "w"), lambda: os.mkdir("data"),
                 lambda: open("config.yaml", "x"), lambda: os.rename("no", "yes")):
        try: call()
        except OSError as error: print(type(error).__name__)
    """
    output = run_guarded_ok(code).split()
    missing, exists = "FileNotFoundError", "FileExistsError"
    assert output == [missing, "IsADirectoryError", exists, exists, missing]


def test_a_file_too_large_to_copy_ends_the_trial(run_guarded_ok: Guarded, work: Path, tmp_path: Path) -> None:
    with (work / "huge.bin").open("wb") as stream:
        stream.truncate(300 << 20)
    code = """
    import os
    child = os.fork()
    if child == 0:
        open("huge.bin", "r+")  # waits for the supervisor
        print("changed it", flush=True)
        os._exit(0)
    import signal, time
    touched = os.environ["SLURMWRAP_STEP_DIR"] + "/touched"
    while not os.path.exists(touched) or not open(touched).read(): time.sleep(0.01)
    print(open(touched).read().split("\\t")[1], end="")
    os.kill(child, signal.SIGKILL)
    """
    assert run_guarded_ok(code) == f"{work}/huge.bin\n"


def test_a_fault_in_the_guard_does_not_change_the_program(run_guarded_ok: Guarded) -> None:
    assert run_guarded_ok("print(open('config.yaml').read().strip())", SLURMWRAP_TRIAL_DIR="") == "lr: 1\n"
    assert run_guarded_ok("import os; print(os.stat.__name__, open.__name__)") == "stat open\n"


def test_child_programs_see_the_files_that_the_program_wrote(run_guarded_ok: Guarded, tmp_path: Path) -> None:
    redirect = tmp_path / "shims" / "redirect"
    redirect.parent.mkdir()
    shutil.copyfile(INJECT.parent / "prerun" / "trial" / "shims" / "redirect", redirect)
    redirect.chmod(0o700)
    code = """
    import os, subprocess
    os.makedirs("results")
    open("results/a.txt", "w").write("a\\n")
    subprocess.run(["cp", "config.yaml", "results/config.yaml"], check=True)
    os.system("cp results/a.txt results/b.txt")
    subprocess.run("cat results/b.txt config.yaml > all.txt 2>&1", shell=True, check=True)
    subprocess.run(["sh", "-c", "echo more >> all.txt; echo new > results/new.txt"], check=True)
    print(subprocess.check_output("ls results > list && wc -l < list; sort -r list", shell=True).decode().split())
    print(subprocess.check_output(["ls", "-x", "."], cwd="results", universal_newlines=True).split())
    print(open("all.txt").read().split(), open("results/new.txt").read().strip())
    """
    output = run_guarded_ok(code, SLURMWRAP_SHIMS=str(redirect.parent))
    listing = "['a.txt', 'b.txt', 'config.yaml', 'new.txt']"
    assert output == f"['4', 'new.txt', 'config.yaml', 'b.txt', 'a.txt']\n{listing}\n['a', 'lr:', '1', 'more'] new\n"


SHELL_REWRITES = [
    ("make all", "make all"),
    ("a 2>&1 | tee x", "a 2>&1 | tee x"),
    ("a > b", """a > "$('/r' ">" b)\""""),
    ("a >>'x y' 2>/dev/null", """a >> "$('/r' ">>" 'x y')" 2>/dev/null"""),
    ("echo 'a > b' \"c > d\" >&2", "echo 'a > b' \"c > d\" >&2"),
    ("[[ a > b ]] && ((1>0)) && x &> log", """[[ a > b ]] && ((1>0)) && x &> "$('/r' ">" log)\""""),
    ("a > $(date +%F).log; b", """a > "$('/r' ">" $(date +%F).log)"; b"""),
    ("cp a made/b|x", "cp a '/S/made/b'|x"),
    ("a > l && wc l", """a > "$('/r' ">" l)" && wc "$('/r' "<" l)\""""),
    ("echo 'unclosed > x", "echo 'unclosed > x"),
    ("", ""),
]


def test_redirections_and_paths_in_shell_commands_are_rewritten() -> None:
    code = """
import json, sys
from slurmwrap_children import led
place = lambda word: '/S/' + word if word.startswith('made') else word
print(json.dumps([[text, led(text, '/r', place)] for text in sys.argv[1:]]))
"""
    argv = [sys.executable, "-c", code, *(text for text, _ in SHELL_REWRITES)]
    environ = {"PYTHONPATH": str(INJECT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=allow(20), check=True)
    assert [tuple(row) for row in json.loads(done.stdout)] == SHELL_REWRITES


def test_saved_tokenizers_can_be_loaded_again(run_guarded_ok: Guarded) -> None:
    pytest.importorskip("tokenizers")
    code = """
    import os
    from tokenizers import Tokenizer, models
    made = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    os.mkdir("tok"); made.save("tok/tokenizer.json"); made.model.save("tok")
    print(Tokenizer.from_file("tok/tokenizer.json").encode("a").ids, sorted(os.listdir("tok")))
    """
    assert run_guarded_ok(code) == "[0] ['tokenizer.json', 'vocab.json']\n"


def test_files_of_libraries_that_write_in_native_code_are_redirected(run_guarded_ok: Guarded) -> None:
    for name in ("safetensors", "h5py", "numpy", "torch"):
        pytest.importorskip(name)
    code = """
    import h5py, numpy as np, os, torch
    from safetensors.torch import load_file, save_file
    save_file({"a": torch.ones(2)}, "m.safetensors"); assert load_file("m.safetensors")["a"].sum() == 2
    with h5py.File("h.h5", "w") as f: f["a"] = [1, 2]
    with h5py.File("h.h5", "a") as f: f["b"] = 1
    with h5py.File("h.h5") as f: assert sorted(f) == ["a", "b"]
    np.save("a.npy", np.zeros(3)); np.savez("b.npz", a=np.ones(2)); np.zeros(3).tofile("t.bin")
    assert np.load("a.npy", mmap_mode="r").shape == (3,) and np.load("b.npz")["a"].sum() == 2
    m = np.memmap("mm", dtype="f4", mode="w+", shape=(3,)); m[:] = 1; m.flush()
    print(sorted(os.listdir(".")))
    """
    made = ["a.npy", "b.npz", "config.yaml", "data", "h.h5", "m.safetensors", "mm", "t.bin"]
    assert run_guarded_ok(code) == f"{made}\n"


@pytest.mark.slow
def test_lightning_trains_on_one_device_and_its_checkpoints_are_redirected(run_guarded_ok: Guarded) -> None:
    pytest.importorskip("lightning")
    code = """
    import os, torch, lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint
    class M(L.LightningModule):
        def __init__(self): super().__init__(); self.l = torch.nn.Linear(4, 1)
        def training_step(self, b, i): return self.l(b[0]).mean()
        def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), batch_size=4)
    t = L.Trainer(devices=8, num_nodes=4, accelerator="cpu", strategy="ddp", max_epochs=2, logger=False,
                  enable_progress_bar=False, callbacks=[ModelCheckpoint(dirpath="ck", save_last=True)])
    t.fit(M(), data); t.save_checkpoint("final.ckpt"); M.load_from_checkpoint("final.ckpt")
    print(t.num_devices, t.num_nodes, t.world_size, sorted(os.listdir("ck"))[-1], os.path.exists("final.ckpt"))
    """
    slurm = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "127.0.0.1", "SLURM_NNODES": "1"}
    slurm |= {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1"}
    slurm |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    assert run_guarded_ok(code, **slurm).splitlines()[-1] == "1 1 1 last.ckpt True"


@pytest.mark.slow
def test_transformers_saves_and_resumes_but_does_not_push_to_the_hub(run_guarded_ok: Guarded) -> None:
    pytest.importorskip("transformers")
    code = """
    import os, torch
    from transformers import BertConfig, BertForSequenceClassification as Bert, Trainer, TrainingArguments
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    data = [{"input_ids": torch.tensor([1, 2]), "labels": torch.tensor(1)} for _ in range(8)]
    args = TrainingArguments(output_dir="out", save_steps=2, max_steps=4, save_total_limit=1, use_cpu=True,
                             report_to=[], disable_tqdm=True, push_to_hub=True, hub_model_id="nobody/nothing")
    trainer = Trainer(model=Bert(config), args=args, train_dataset=data)
    trainer.train(); trainer.save_model("final"); trainer.push_to_hub(); Bert.from_pretrained("final")
    trainer.train(resume_from_checkpoint=True)
    print(os.listdir("out"), "model.safetensors" in os.listdir("final"))
    """
    assert run_guarded_ok(code).splitlines()[-1] == "['checkpoint-4'] True"


@pytest.mark.slow
def test_keras_loads_the_models_that_it_saved(run_guarded_ok: Guarded) -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    code = """
    import keras, os
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.save("m.keras"); keras.models.load_model("m.keras")
    model.save_weights("w.weights.h5"); model.load_weights("w.weights.h5")
    print(sorted(os.listdir(".")))
    """
    output = run_guarded_ok(code, KERAS_BACKEND="torch").splitlines()[-1]
    assert output == "['config.yaml', 'data', 'm.keras', 'w.weights.h5']"


def test_a_link_from_a_users_file_to_a_free_directory_is_a_copy(run_guarded_ok: Guarded) -> None:
    code = """
    import os, tempfile
    with tempfile.TemporaryDirectory(dir="/tmp") as free:
        os.link("config.yaml", free + "/copy")
        with open(free + "/copy", "a") as f: f.write("more")
        print(open(free + "/copy").read().split())
    """
    assert run_guarded_ok(code) == "['lr:', '1', 'more']\n"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('open_file("data/a.txt")', "users"),
        ('open_file("data/a.txt", "r", "title")', "users"),
        ('open_file("data/a.txt", mode="r")', "users"),
        ('open_file("data/a.txt", "a", "r")', "shadow"),
        ('open_file("data/a.txt", "w", "r")', "shadow"),
        ('open_file("data/a.txt", mode="w")', "shadow"),
    ],
)
def test_a_library_that_opens_files_by_mode_writes_to_the_shadow_and_reads_the_users_file(
    run_guarded_ok: Guarded, tmp_path: Path, call: str, expected: str
) -> None:
    (tmp_path / "lib" / "tables").mkdir(parents=True)
    (tmp_path / "lib" / "tables" / "__init__.py").touch()
    (tmp_path / "lib" / "tables" / "file.py").write_text(
        "def open_file(filename, mode='r', title=''):\n    return filename\n"
    )
    code = f"""
    import sys
    sys.path.insert(0, {str(tmp_path / "lib")!r})
    from tables.file import open_file
    path = {call}
    here = path == "data/a.txt"
    print("users" if here else "shadow")
    """
    assert run_guarded_ok(code) == f"{expected}\n"
