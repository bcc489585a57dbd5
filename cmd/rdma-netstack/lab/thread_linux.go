package lab

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs fn on an operating system thread of its own, which ends when fn returns. All
// changes that fn makes to the thread (namespaces) end with it. The caller does not wait.
func onThread(fn func()) {
	go func() {
		runtime.LockOSThread() // never unlocked: that is what ends the thread
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		// The process's first thread can never end, so it must not be changed. While this goroutine
		// holds it, the next goroutine gets another one.
		taken := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(taken)
			fn()
		}()
		<-taken
		runtime.UnlockOSThread()
	}()
}

// onThreadWait does what onThread does, and returns the result.
func onThreadWait(fn func() error) error {
	done := make(chan error, 1)
	onThread(func() { done <- fn() })
	return <-done
}
