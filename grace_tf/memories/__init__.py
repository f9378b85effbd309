"""The memories: each has one file, and one import line here that registers it."""

from grace_tf.memories import adacomp as adacomp
from grace_tf.memories import dgc as dgc
from grace_tf.memories import diana as diana
from grace_tf.memories import ecq as ecq
from grace_tf.memories import ef21 as ef21
from grace_tf.memories import lowpass as lowpass
from grace_tf.memories import momentum as momentum
from grace_tf.memories import none as none
from grace_tf.memories import residual as residual
from grace_tf.memories import variance as variance
