"""The methods: one file and one import line here each; everything else reads the registry."""

from grace_tf.compressors import acpsgd as acpsgd
from grace_tf.compressors import adaq as adaq
from grace_tf.compressors import bf16 as bf16
from grace_tf.compressors import chunktopk as chunktopk
from grace_tf.compressors import dgc as dgc
from grace_tf.compressors import eden as eden
from grace_tf.compressors import efsignsgd as efsignsgd
from grace_tf.compressors import fp16 as fp16
from grace_tf.compressors import gradzip as gradzip
from grace_tf.compressors import gtopk as gtopk
from grace_tf.compressors import inceptionn as inceptionn
from grace_tf.compressors import natural as natural
from grace_tf.compressors import none as none
from grace_tf.compressors import onebit as onebit
from grace_tf.compressors import powersgd as powersgd
from grace_tf.compressors import qsgd as qsgd
from grace_tf.compressors import qsparse as qsparse
from grace_tf.compressors import randomk as randomk
from grace_tf.compressors import signsgd as signsgd
from grace_tf.compressors import signum as signum
from grace_tf.compressors import sketch as sketch
from grace_tf.compressors import stc as stc
from grace_tf.compressors import terngrad as terngrad
from grace_tf.compressors import threshold as threshold
from grace_tf.compressors import topk as topk
from grace_tf.compressors import u8bit as u8bit
