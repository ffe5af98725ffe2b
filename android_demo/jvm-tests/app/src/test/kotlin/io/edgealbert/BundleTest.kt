package io.edgealbert

import java.io.File
import java.io.RandomAccessFile
import org.json.JSONArray
import org.json.JSONObject
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

class BundleTest {
    @get:Rule
    val folder = TemporaryFolder()

    @Test
    fun theManifestIsRead() {
        val manifest = JSONObject(File(TestData.bundle, Bundle.MANIFEST).readText())
        val bundle = Bundle.open(TestData.bundle)
        assertEquals(manifest.getString("task"), bundle.task)
        assertEquals(manifest.getJSONArray("labels").length(), bundle.labels.size)
        assertTrue(bundle.modelFile("onnx").isFile)
    }

    @Test
    fun oneChangedBitInAnyFileIsFound() {
        val manifest = JSONObject(File(TestData.bundle, Bundle.MANIFEST).readText())
        for (name in manifest.getJSONObject("files").keys()) {
            val copy = TestData.copy(folder)
            RandomAccessFile(File(copy, name), "rw").use { file ->
                file.seek(file.length() / 2)
                val byte = file.read()
                file.seek(file.length() / 2)
                file.write(byte xor 1)
            }
            assertRefused(copy, "$name: sha256 differs")
        }
    }

    @Test
    fun shortenedAndMissingFilesAreNamed() {
        val cut = TestData.copy(folder)
        RandomAccessFile(File(cut, "model.onnx"), "rw").use { it.setLength(1000) }
        assertRefused(cut, "model.onnx: 1000 bytes")
        val missing = TestData.copy(folder)
        File(missing, "spiece.model").delete()
        assertRefused(missing, "spiece.model: missing")
    }

    @Test
    fun aNewerFormatSaysToUpdate() {
        val copy = TestData.copy(folder)
        TestData.edit(copy) { it.put("format_version", 2) }
        assertRefused(copy, "update the library")
    }

    @Test
    fun aBrokenManifestIsRefused() {
        val changes = listOf<(JSONObject) -> Unit>(
            { it.put("format", "something else") },
            { it.put("format_version", 0) },
            { it.put("format_version", "one") },
            { it.remove("labels") },
            { it.put("labels", "spam") },
            { it.put("task", JSONArray()).put("files", 3) },
            { it.put("models", JSONObject()) },
            { it.getJSONObject("models").getJSONObject("onnx").put("file", "other.onnx") },
            { it.getJSONObject("files").put("../model.onnx", JSONObject()) },
            { it.getJSONObject("files").put("more", JSONObject().put("size", 1)) }
        )
        for (change in changes) {
            val copy = TestData.copy(folder)
            TestData.edit(copy, change)
            assertThrows(BundleException::class.java) { Bundle.open(copy) }
        }
        val garbage = TestData.copy(folder)
        File(garbage, Bundle.MANIFEST).writeText("{\n\"format\": [\n")
        assertRefused(garbage, "damaged")
    }

    @Test
    fun noFolderAndNoManifest() {
        assertRefused(File(folder.root, "nowhere"), "no such folder")
        assertRefused(folder.newFolder(), "bundle.json: missing")
    }

    @Test
    fun aFormatThatIsNotThereIsNamed() {
        val error = assertThrows(BundleException::class.java) {
            Bundle.open(TestData.bundle).modelFile("coreml")
        }
        assertTrue(error.message, error.message!!.contains("--format coreml"))
    }

    private fun assertRefused(bundle: File, message: String) {
        val error = assertThrows(BundleException::class.java) { Bundle.open(bundle) }
        assertTrue(error.message, error.message!!.contains(message))
        assertEquals(1, error.message!!.lines().size)
    }
}
