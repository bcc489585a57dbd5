package simnic

import "sync"

// refCount counts the objects that use an object, which cannot be destroyed before them. Safe for
// concurrent use.
type refCount struct {
	mu    sync.Mutex
	users int
	gone  bool
}

// acquire adds a user. It fails if the object is destroyed.
func (u *refCount) acquire() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone {
		return StatusBadRes
	}
	u.users++
	return nil
}

func (u *refCount) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.users--
}

// retire marks the object destroyed, or returns the reason why it cannot be destroyed.
func (u *refCount) retire() error {
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

// run starts f, unless stop was called before.
func (b *background) run(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.stopped {
		b.running.Go(f)
	}
}

// stop waits for the running goroutines.
func (b *background) stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.running.Wait()
}
