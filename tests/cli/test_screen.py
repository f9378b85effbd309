"""What the launcher shows of the workers' lines: ranks, redrawn lines, TensorFlow's start-up."""

import io
import unittest
from unittest import mock

from grace_tf.cli.run import screen, start_up

ERASE = screen._ERASE
ONEDNN = (
    "oneDNN custom operations are on. You may see slightly different numerical results due to "
    "floating-point round-off errors from different computation orders. To turn them off, set the "
    "environment variable `TF_ENABLE_ONEDNN_OPTS=0`."
)
TWICE = (
    "Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one "
    "has already been registered"
)
START_UP = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    f"I0000 00:00:1795265164.140854    9942 port.cc:153] {ONEDNN}",
    f"2026-11-21 12:46:22.888109: I tensorflow/core/util/port.cc:113] {ONEDNN}",
    "I0000 00:00:1795265164.250464    9942 cpu_feature_guard.cc:227] This TensorFlow binary is "
    "optimized to use available CPU instructions in performance-critical operations.",
    "To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild "
    "TensorFlow with the appropriate compiler flags.",
    "I0000 00:00:1795265164.250464    9942 cudart_stub.cc:31] Could not find cuda drivers on your "
    "machine, GPU will not be used.",
    f"E0000 00:00:1795265164.250464    9942 cuda_dnn.cc:8310] {TWICE}",
    "2026-11-21 12:46:22.888109: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] "
    + TWICE,
    "E0000 00:00:1795265164.250464    9942 util.cc:131] oneDNN supports DT_HALF only on platforms "
    "with AVX-512. Falling back to the default Eigen-based implementation if present.",
    "W0000 00:00:1795265164.250464    9942 computation_placer.cc:177] computation placer already "
    "registered. Please check linkage and avoid linking the same target more than once.",
    "2026-11-21 12:46:22.888109: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT "
    "Warning: Could not find TensorRT",
]
OTHERS = [
    "",
    "WARNING: All log messages go to a file",
    f"my program says: {ONEDNN}",
    f"E0000 00:00:1795265164.140854    9942 port.cc:153] {ONEDNN}",
    f"F0000 00:00:1795265164.140854    9942 cuda_dnn.cc:8310] {TWICE}",
    "E0000 00:00:1795265164.1 9942 cuda_platform.cc:51] failed call to cuInit: UNKNOWN ERROR (303)",
    "E0000 00:00:1795265164.1 9942 util.cc:131] oneDNN primitive could not be made",
    "E0000 00:00:1795265164.1 9942 cuda_dnn.cc:1] Unable to register cuDNN factory: no memory",
    "2026-11-21 12:46:22.888109: F tensorflow/core/platform/cpu_feature_guard.cc:97] The "
    "TensorFlow library was compiled to use AVX instructions",
    "I0000 00:00:1795265207.275876   10492 coordination_service.cc:502] Waiting for 1/2 tasks",
    "To enable the following instructions: press any key",
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def follow(shown, rank, *chunks, errors=False):
    pipe = mock.MagicMock()
    pipe.read1.side_effect = [*chunks, b""]
    shown.follow(rank, pipe, errors)


def both(stream, prefix="auto", verbose=False):
    """A screen whose stdout and stderr are one stream."""
    return screen.Screen(stream, stream, prefix, verbose)


class PipeTest(unittest.TestCase):
    def test_lines_survive_any_cut_into_pieces(self):
        text = b"a\r\nb\r10%\b\b\b\r\x1b[2K20%\n\n\rc\xff\nlast\b\b\r\x1b[?25h"
        for cut in range(1, len(text)):
            log = io.StringIO()
            with mock.patch.object(screen, "_REDRAW_SECONDS", float("inf")):
                follow(both(log), 0, text[:cut], text[cut:])
            lines = log.getvalue().split("\n")
            self.assertEqual(lines, ["a", "20%", "", "c\ufffd", "last", ""], cut)

    def test_one_state_a_second_becomes_a_line(self):
        log = io.StringIO()
        with mock.patch.object(screen.time, "monotonic", side_effect=[100, 100, 100.5, 101.2, 102]):
            follow(both(log), 1, b"\r1%", b"\r2%", b"\r3%", b"\n")
        self.assertEqual(log.getvalue(), "[1] 1%\n[1] 3%\n")

    def test_the_rank_stands_before_the_lines_that_the_prefix_says(self):
        for prefix, said in (
            ("always", "[0] a\n[1] b\n"),
            ("auto", "a\n[1] b\n"),
            ("never", "a\nb\n"),
        ):
            log = io.StringIO()
            shown = both(log, prefix)
            follow(shown, 0, b"a\n")
            follow(shown, 1, b"b\n")
            self.assertEqual(log.getvalue(), said)
        with self.assertRaisesRegex(ValueError, "one of always, auto, never, not 'some'"):
            both(io.StringIO(), "some")


class StartUpLinesTest(unittest.TestCase):
    def test_which_lines_are_tensorflow_s_start_up(self):
        self.assertEqual([line for line in START_UP if not start_up.is_start_up_line(line)], [])
        self.assertEqual([line for line in OTHERS if start_up.is_start_up_line(line)], [])

    def test_they_are_hidden_on_stderr_unless_verbose(self):
        text = "\n".join([*START_UP, "mine", ""]).encode()
        for verbose, errors, count in ((False, True, 1), (True, True, 12), (False, False, 12)):
            log = io.StringIO()
            follow(both(log, verbose=verbose), 0, text, errors=errors)
            self.assertEqual(len(log.getvalue().splitlines()), count)
            self.assertTrue(log.getvalue().endswith("mine\n"))


class TerminalTest(unittest.TestCase):
    def test_worker_0_is_drawn_in_place_and_others_only_when_their_line_ends(self):
        terminal = Terminal()
        shown = both(terminal, "always")
        follow(shown, 0, b"\r10%", b"\r20%\n")
        drawn = f"{ERASE}{screen._NO_WRAP}[0] 10%{screen._WRAP}"
        self.assertEqual(terminal.getvalue(), f"{drawn}{ERASE}[0] 20%\n")
        terminal.truncate(0)
        terminal.seek(0)
        follow(shown, 1, b"\r10%", b"\r20%", b"\r30%\n")
        self.assertEqual(terminal.getvalue(), "[1] 30%\n")

    def test_a_line_comes_above_what_is_drawn(self):
        out, err = Terminal(), Terminal()
        shown = screen.Screen(out, err, "auto", False)

        def chunks():
            yield b"\r10%"
            follow(shown, 1, b"hello\n")
            follow(shown, 0, b"oh\n", errors=True)
            yield b"\r20%\n"
            follow(shown, 1, b"bye\n")
            yield b""

        pipe = mock.MagicMock()
        pipe.read1.side_effect = chunks()
        shown.follow(0, pipe, False)
        drawn = f"{screen._NO_WRAP}10%{screen._WRAP}"
        again = f"{ERASE}{drawn}{ERASE}[1] hello\n{drawn}{ERASE}{drawn}"  # stderr: between the last
        self.assertEqual(out.getvalue(), f"{again}{ERASE}20%\n[1] bye\n")
        self.assertEqual(err.getvalue(), "oh\n")

    def test_a_display_of_several_lines_takes_no_line_of_another_away(self):
        """Rich goes up to redraw; what stands there now may be another worker's."""
        terminal = Terminal()
        frame = b"\r\x1b[2K\x1b[1A\x1b[2Kfirst %d\nsecond %d"
        chunks = [b"first 0\nsecond 0", *(frame % (i, i) for i in range(1, 9)), b"\nend\n"]
        with mock.patch.object(screen.time, "monotonic", return_value=100.0):
            follow(both(terminal), 0, *chunks)
        text = terminal.getvalue()
        self.assertNotIn("\x1b[1A", text)
        self.assertEqual(text.splitlines(), ["first 0", "first 1", "second 8", "end"])

    def test_a_log_beside_a_terminal_gets_no_codes(self):
        out, log = Terminal(), io.StringIO()
        shown = screen.Screen(out, log, "auto", False)
        follow(shown, 0, b"\r10%", errors=True)
        follow(shown, 0, b"\r20%")
        shown.say("a sentence.")
        self.assertEqual(log.getvalue(), "10%\n[grace_tf] a sentence.\n")
        self.assertNotIn("sentence", out.getvalue())
        self.assertEqual(shown.environment(0), {})  # rich would write its codes into the log


if __name__ == "__main__":
    unittest.main()
