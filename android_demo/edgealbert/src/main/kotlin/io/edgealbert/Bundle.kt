package io.edgealbert

import java.io.File
import java.io.IOException
import java.security.MessageDigest
import org.json.JSONException
import org.json.JSONObject

/**
 * A verified bundle: the folder that `python -m edge_albert.export` writes (edge_albert/bundle.py
 * has the format).
 *
 * Opening reads bundle.json, then checks size and SHA-256 of every file it lists: engines do not
 * check what they map.
 */
class Bundle private constructor(
    val folder: File,
    /** bundle.json as read. */
    internal val manifest: JSONObject
) {
    private val config = manifest.getJSONObject("config")
    private val models = manifest.getJSONObject("models")

    /** As in edge_albert/tasks.py: "text-classification", "question-answering", … */
    val task: String = manifest.getString("task")

    /** One per class, in the order of the logits. */
    val labels: List<String> = manifest.getJSONArray("labels").run { List(length()) { getString(it) } }

    /** Entries of the model's vocabulary. */
    val vocabSize: Int = config.getInt("vocab_size")

    /** Tokens the model takes at most, special ones included. */
    val maxLength: Int = config.getInt("max_position_embeddings")

    /** Model formats in the bundle: "onnx", "tflite". */
    val formats: List<String> = models.keys().asSequence().toList()

    init {
        val files = manifest.getJSONObject("files")
        if (formats.isEmpty()) throw JSONException("models is empty")
        formats.find { !files.has(modelName(it)) }?.let {
            throw JSONException("models.$it.file is not among files")
        }
    }

    /** The model file of a format. [BundleException] when the bundle has none. */
    fun modelFile(format: String): File {
        if (format !in formats) {
            throw BundleException(
                "$folder: no $format model in this bundle (it has ${formats.joinToString()}): " +
                    "export again with --format $format"
            )
        }
        return File(folder, modelName(format))
    }

    /** The margin of "no answer" that a question-answering model was tuned to, or null. */
    val nullThreshold: Double?
        get() = config.optDouble("null_threshold").takeUnless { it.isNaN() }

    /** How inputs leave a model with early exit, or null (edge_albert/early_exit.py). */
    internal val exits: Exits? = manifest.optJSONObject("early_exit")?.let {
        Exits(it.getDouble("threshold").toFloat(), it.getInt("iterations"))
    }

    /** [threshold]: of the bundle's criterion; [iterations]: after which every input leaves. */
    internal class Exits(val threshold: Float, val iterations: Int)

    /** The engine that a format of this bundle needs, as in "ai-edge-litert>=2.1", or null. */
    internal fun needs(format: String): String? =
        models.getJSONObject(format).optString("needs").takeUnless { it.isEmpty() }

    /** Any other file of the bundle, or null when the manifest does not list it. */
    internal fun file(name: String): File? =
        if (manifest.getJSONObject("files").has(name)) File(folder, name) else null

    private fun modelName(format: String): String = models.getJSONObject(format).getString("file")

    companion object {
        const val MANIFEST = "bundle.json"
        private const val LONGEST = 120
        private const val BLOCK = 65536 // bytes read at a time
        private const val FORMAT = "edge_albert.bundle"
        private const val FORMAT_VERSION = 1
        private val REQUIRED = listOf("task", "labels", "config", "tokenizer", "models", "files")
        private const val DAMAGED = "the bundle is damaged; copy or export it again"

        /** Read and verify. Throws [BundleException], naming the file and the field. */
        fun open(folder: File): Bundle {
            if (!folder.isDirectory) {
                throw BundleException(
                    "$folder: no such folder: a bundle is a folder written by " +
                        "python -m edge_albert.export"
                )
            }
            val path = File(folder, MANIFEST)
            return fromJson(path) {
                val manifest = JSONObject(readText(path))
                checkFormat(manifest, path)
                verifyFiles(folder, manifest.getJSONObject("files"))
                Bundle(folder, manifest)
            }
        }

        private fun checkFormat(manifest: JSONObject, path: File) {
            if (manifest.optString("format") != FORMAT) {
                throw BundleException("$path: format is not $FORMAT: not an edge_albert bundle")
            }
            val version = manifest.getInt("format_version")
            if (version > FORMAT_VERSION) {
                throw BundleException(
                    "$path: format_version $version is newer than this library reads " +
                        "($FORMAT_VERSION): update the library"
                )
            }
            val missing = REQUIRED.filter { !manifest.has(it) }
            if (version < 1 || missing.isNotEmpty()) {
                throw JSONException("format_version $version, missing: ${missing.joinToString()}")
            }
        }

        private fun verifyFiles(folder: File, files: JSONObject) {
            for (name in files.keys()) {
                if (!isPlain(name)) {
                    throw BundleException("$folder: files names $name: only plain file names are allowed")
                }
                val entry = files.getJSONObject(name)
                verify(File(folder, name), entry.getLong("size"), entry.getString("sha256"))
            }
        }

        private fun isPlain(name: String): Boolean =
            name !in setOf("", ".", "..") && name.none { it in "/\\:\u0000" }

        private fun verify(file: File, size: Long, hash: String) {
            if (!file.isFile) {
                throw BundleException("$file: missing: the bundle is incomplete; copy or export it again")
            }
            if (file.length() != size) {
                throw BundleException("$file: ${file.length()} bytes, the manifest says $size: $DAMAGED")
            }
            val found = try {
                sha256(file)
            } catch (error: IOException) {
                throw BundleException("$file: cannot be read (${error.message})", error)
            }
            if (found != hash) {
                throw BundleException("$file: sha256 differs from the manifest: $DAMAGED")
            }
        }

        private fun readText(path: File): String = try {
            path.readText()
        } catch (error: IOException) {
            throw BundleException("$path: missing or unreadable: $DAMAGED", error)
        }

        private inline fun <T> fromJson(path: File, read: () -> T): T = try {
            read()
        } catch (error: JSONException) {
            val said = error.message.orEmpty().substringBefore('\n').take(LONGEST) // it may quote the file
            throw BundleException("$path: $said: $DAMAGED", error)
        }

        private fun sha256(file: File): String {
            val digest = MessageDigest.getInstance("SHA-256")
            val block = ByteArray(BLOCK)
            file.inputStream().use { stream ->
                while (true) {
                    val count = stream.read(block)
                    if (count < 0) break
                    digest.update(block, 0, count)
                }
            }
            return digest.digest().joinToString("") { "%02x".format(it) }
        }
    }
}
