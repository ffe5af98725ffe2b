package io.edgealbert

import io.edgealbert.tokenizer.CharacterRules
import java.io.File
import java.security.MessageDigest
import org.json.JSONArray
import org.json.JSONObject
import org.json.JSONTokener
import org.junit.Assume.assumeTrue
import org.junit.rules.TemporaryFolder

/** The bundle under test and what Python says of it, see scripts/make_test_vectors.py. */
internal object TestData {
    val bundle = File(System.getProperty("bundle"))
    private val vectors = File(System.getProperty("vectors"))
    val logitTolerance = System.getProperty("logit.tolerance").toFloat()

    fun vectors(name: String): Any = JSONTokener(File(vectors, "vectors/$name.json").readText()).nextValue()

    /** A copy to damage. */
    fun copy(folder: TemporaryFolder): File =
        folder.newFolder().also { bundle.copyRecursively(it, overwrite = true) }

    /** The tiny model of another task, completed with the demo's tokenizer. */
    fun tinyBundle(folder: TemporaryFolder, task: String): File {
        val target = folder.newFolder()
        File(vectors, "bundles/$task").copyRecursively(target, overwrite = true)
        for (name in listOf("spiece.model", CharacterRules.FILE)) {
            File(bundle, name).copyTo(File(target, name))
        }
        return target
    }

    /** Change bundle.json. */
    fun edit(bundle: File, change: (JSONObject) -> Unit) {
        val path = File(bundle, Bundle.MANIFEST)
        path.writeText(JSONObject(path.readText()).also(change).toString())
    }

    /** Replace a file and say so in the manifest, so that only its content can be at fault. */
    fun replace(bundle: File, name: String, content: ByteArray) {
        File(bundle, name).writeBytes(content)
        val hash = MessageDigest.getInstance("SHA-256").digest(content)
        edit(bundle) { manifest ->
            val entry = JSONObject()
                .put("size", content.size)
                .put("sha256", hash.joinToString("") { "%02x".format(it) })
            manifest.getJSONObject("files").put(name, entry)
        }
    }

    fun floats(array: JSONArray) = FloatArray(array.length()) { array.getDouble(it).toFloat() }

    /** Skips the test where src/test/java/org/tensorflow/lite has no engine to stand in with. */
    fun assumeDesktopTflite() {
        val system = listOf("os.name", "os.arch").map { System.getProperty(it) }
        assumeTrue("TensorFlow Lite's desktop build is for Linux x86-64", system == listOf("Linux", "amd64"))
    }

    fun objects(array: JSONArray): List<JSONObject> = List(array.length()) { array.getJSONObject(it) }
}
