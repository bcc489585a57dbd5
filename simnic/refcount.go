package simnic

import "sync"

// refCount counts the objects that use an object, which cannot be destroyed before them. Safe for
// concurrent use.
type refCount struct {
	mu    sync.Mutex
	users int
	gone  bool
}

// addUser adds a user. It fails if the object is destroyed.
func (u *refCount) addUser() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone {
		return StatusBadRes
	}
	u.users++
	return nil
}

func (u *refCount) dropUser() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users--
}

// retireObject marks the object destroyed, or returns the reason why it cannot be destroyed.
func (u *refCount) retireObject() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.gone:
		return StatusBadRes
	case u.users > 0:
		return StatusResBusy
	}
	u.gone = true
	return nil
}

// background groups goroutines: Close waits for them and lets no more start.
type background struct {
	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// runBeside starts f, unless stop was called before.
func (b *background) runBeside(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stopped {
		b.running.Go(f)
	}
}

// stopAndWait waits for the running goroutines.
func (b *background) stopAndWait() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.running.Wait()
}
