package org.tensorflow.lite;

import static org.bytedeco.tensorflowlite.global.tensorflowlite.TfLiteVersion;

/** See Interpreter beside this file. */
public final class TensorFlowLite {
    private TensorFlowLite() {}

    public static String runtimeVersion() {
        return TfLiteVersion().getString();
    }
}
