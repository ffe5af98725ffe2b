package org.tensorflow.lite;

import static org.bytedeco.tensorflowlite.global.tensorflowlite.*;

import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.Map;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.IntPointer;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.tensorflowlite.TfLiteInterpreter;
import org.bytedeco.tensorflowlite.TfLiteInterpreterOptions;
import org.bytedeco.tensorflowlite.TfLiteModel;
import org.bytedeco.tensorflowlite.TfLiteSignatureRunner;
import org.bytedeco.tensorflowlite.TfLiteTensor;

/**
 * Stands in for TensorFlow Lite's Interpreter, whose native library is for Android only: the methods that TfliteEngine
 * calls, on the desktop build of the same engine that JavaCPP's presets have on Maven Central. On the class path it
 * comes before the real one. On Linux x86-64 only; the tests that need it are skipped elsewhere.
 */
public final class Interpreter implements AutoCloseable {
    /** As the real one: set and pass on. */
    public static final class Options {
        private int threads = 1;

        public Options setNumThreads(int count) {
            threads = count;
            return this;
        }

        public Options setUseXNNPACK(boolean wanted) {
            return this;
        }
    }

    private final TfLiteModel model;
    private final TfLiteInterpreter native_;

    public Interpreter(File file, Options options) {
        model = TfLiteModelCreateFromFile(file.getPath());
        if (model == null || model.isNull()) {
            throw new IllegalArgumentException("Contents of " + file + " does not encode a valid TensorFlow Lite model");
        }
        TfLiteInterpreterOptions settings = TfLiteInterpreterOptionsCreate();
        TfLiteInterpreterOptionsSetNumThreads(settings, options.threads);
        native_ = TfLiteInterpreterCreate(model, settings);
        TfLiteInterpreterOptionsDelete(settings);
    }

    public String[] getSignatureKeys() {
        String[] keys = new String[TfLiteInterpreterGetSignatureCount(native_)];
        for (int i = 0; i < keys.length; i++) keys[i] = TfLiteInterpreterGetSignatureKey(native_, i).getString();
        return keys;
    }

    public Tensor getInputTensorFromSignature(String input, String signature) {
        TfLiteSignatureRunner runner = TfLiteInterpreterGetSignatureRunner(native_, signature);
        long address = TfLiteSignatureRunnerGetInputTensor(runner, input).address();
        TfLiteSignatureRunnerDelete(runner);
        for (int i = 0; i < getInputTensorCount(); i++) {
            if (TfLiteInterpreterGetInputTensor(native_, i).address() == address) return getInputTensor(i);
        }
        throw new IllegalArgumentException("Invalid input name " + input);
    }

    public int getInputTensorCount() {
        return TfLiteInterpreterGetInputTensorCount(native_);
    }

    public Tensor getInputTensor(int i) {
        return new DesktopTensor(TfLiteInterpreterGetInputTensor(native_, i), TfLiteInterpreterGetInputTensorIndex(native_, i));
    }

    public Tensor getOutputTensor(int i) {
        return new DesktopTensor(TfLiteInterpreterGetOutputTensor(native_, i), TfLiteInterpreterGetOutputTensorIndex(native_, i));
    }

    public void resizeInput(int i, int[] shape) {
        check(TfLiteInterpreterResizeInputTensor(native_, i, shape, shape.length), "resize");
    }

    public void allocateTensors() {
        check(TfLiteInterpreterAllocateTensors(native_), "allocate");
    }

    public void runForMultipleInputsOutputs(Object[] inputs, Map<Integer, Object> outputs) {
        for (int i = 0; i < inputs.length; i++) {
            TfLiteTensor tensor = TfLiteInterpreterGetInputTensor(native_, i);
            try (Pointer values = pointer(inputs[i])) {
                check(TfLiteTensorCopyFromBuffer(tensor, values, TfLiteTensorByteSize(tensor)), "copy input " + i);
            }
        }
        check(TfLiteInterpreterInvoke(native_), "invoke");
    }

    @Override
    public void close() {
        TfLiteInterpreterDelete(native_);
        TfLiteModelDelete(model);
    }

    private static Pointer pointer(Object values) {
        return values instanceof FloatBuffer ? new FloatPointer((FloatBuffer) values) : new IntPointer((IntBuffer) values);
    }

    private static void check(int status, String what) {
        if (status != 0) throw new IllegalStateException("could not " + what);
    }

    private static final class DesktopTensor implements Tensor {
        private final TfLiteTensor tensor;
        private final int index;

        DesktopTensor(TfLiteTensor tensor, int index) {
            this.tensor = tensor;
            this.index = index;
        }

        @Override
        public int index() {
            return index;
        }

        @Override
        public String name() {
            return TfLiteTensorName(tensor).getString();
        }

        @Override
        public int numDimensions() {
            return TfLiteTensorNumDims(tensor);
        }

        @Override
        public int numBytes() {
            return (int) TfLiteTensorByteSize(tensor);
        }

        @Override
        public int[] shape() {
            int[] shape = new int[numDimensions()];
            for (int i = 0; i < shape.length; i++) shape[i] = TfLiteTensorDim(tensor, i);
            return shape;
        }

        @Override
        public ByteBuffer asReadOnlyBuffer() {
            byte[] content = new byte[numBytes()];
            try (BytePointer pointer = new BytePointer(content.length)) {
                check(TfLiteTensorCopyToBuffer(tensor, pointer, content.length), "copy an output");
                pointer.get(content);
            }
            return ByteBuffer.wrap(content).order(ByteOrder.nativeOrder()).asReadOnlyBuffer().order(ByteOrder.nativeOrder());
        }

        @Override
        public DataType dataType() {
            throw new UnsupportedOperationException();
        }

        @Override
        public int numElements() {
            throw new UnsupportedOperationException();
        }

        @Override
        public int[] shapeSignature() {
            throw new UnsupportedOperationException();
        }

        @Override
        public QuantizationParams quantizationParams() {
            throw new UnsupportedOperationException();
        }
    }
}
