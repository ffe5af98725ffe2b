package io.edgealbert

import android.content.res.AssetManager
import io.edgealbert.engine.Engines
import java.io.File
import java.io.FileNotFoundException
import java.io.IOException

/**
 * The one place that knows Android: a bundle among an app's assets becomes a folder of files,
 * which engines can map instead of holding the model on the heap.
 */
object BundleAssets {
    private const val NAME = "bundle"

    /**
     * A session on the bundle in assets/[name], unpacked below [target] at the first start; a good one
     * is `context.noBackupFilesDir`. A copy that was damaged since is made again. Call it from a
     * background thread. Throws [EdgeAlbertException].
     */
    fun open(
        assets: AssetManager,
        target: File,
        name: String = NAME,
        threads: Int = Engines.defaultThreads()
    ): Session {
        val folder = install(assets, target, name)
        return try {
            Session.open(folder, threads)
        } catch (_: BundleException) {
            folder.deleteRecursively()
            Session.open(install(assets, target, name), threads)
        }
    }

    /**
     * Copy the bundle in assets/[name] to [target]/[name] and return that folder.
     *
     * Nothing is copied when the folder has the same manifest already; an app update brings another
     * one. The manifest is written last, so a copy that was interrupted is made again. Throws
     * [BundleException] when the assets lack the bundle or storage is full.
     */
    @Synchronized
    fun install(assets: AssetManager, target: File, name: String = NAME): File {
        val folder = File(target, name)
        val manifest = readManifest(assets, name)
        val installed = File(folder, Bundle.MANIFEST)
        if (installed.isFile && installed.readBytes().contentEquals(manifest)) return folder
        try {
            folder.deleteRecursively()
            if (!folder.mkdirs()) throw IOException("$folder cannot be made")
            val files = assets.list(name).orEmpty().filter { it != Bundle.MANIFEST }
            for (file in files) copy(assets, "$name/$file", File(folder, file))
            installed.writeBytes(manifest)
        } catch (error: IOException) {
            throw BundleException("$folder: the bundle cannot be unpacked (${error.message})", error)
        }
        return folder
    }

    private fun copy(assets: AssetManager, name: String, target: File) {
        assets.open(name, AssetManager.ACCESS_STREAMING).use { source ->
            target.outputStream().use { source.copyTo(it) }
        }
    }

    private fun readManifest(assets: AssetManager, name: String): ByteArray = try {
        assets.open("$name/${Bundle.MANIFEST}").use { it.readBytes() }
    } catch (error: FileNotFoundException) {
        throw BundleException(
            "assets/$name: no bundle in this app: put one there with " +
                "python -m edge_albert.export --android",
            error
        )
    }
}
