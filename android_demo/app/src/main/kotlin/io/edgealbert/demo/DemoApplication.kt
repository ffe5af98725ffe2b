package io.edgealbert.demo

import android.app.Application

/** Holds what must outlive a rotation: the model and the thread that runs it. */
class DemoApplication : Application() {
    lateinit var worker: ModelWorker
        private set

    override fun onCreate() {
        super.onCreate()
        worker = ModelWorker(assets, noBackupFilesDir)
    }
}
