import subprocess
import sys

_SCRIPT = """
import sys
from millstream.cli.main import refuse_pandas
assert "pandas" not in sys.modules, "an import alone loads pandas"
refuse_pandas()
import pyarrow as pa
assert pa.array([1, 2]).to_pylist() == [1, 2]
assert pa.scalar(b"x", pa.binary()).as_py() == b"x"
print("pandas" in sys.modules)
"""


def test_the_server_converts_values_without_loading_pandas() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "False\n"
