// Package lockorder takes two locks in both orders: TestLockOrderBites expects to hear of each
// place where the inner one is held first.
package lockorder

import "sync"

// Outer has the lock that is to be taken first.
type Outer struct {
	mu sync.Mutex
	n  int // guarded by mu
}

// Inner has the lock that is to be taken second.
type Inner struct {
	mu   sync.RWMutex
	n    int // guarded by mu
	host Host
}

// Host hides whose lock its method takes.
type Host interface{ Tell() }

// Tell implements Host.
func (o *Outer) Tell() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
}

// Right takes the locks in the right order, twice.
func (o *Outer) Right(i *Inner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i.mu.RLock()
	o.n += i.n
	i.mu.RUnlock()
	i.mu.Lock()
	i.n++
	i.mu.Unlock()
}

// Released takes the outer lock without the inner one.
func (i *Inner) Released(o *Outer) {
	i.mu.Lock()
	i.n++
	i.mu.Unlock()
	o.Tell()
	go func() { o.Tell() }()
}

// Direct takes the outer lock itself.
func (i *Inner) Direct(o *Outer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	o.mu.Lock() // wrong
	o.n++
	o.mu.Unlock()
}

// ByCall calls a method that takes it.
func (i *Inner) ByCall(o *Outer) {
	i.mu.RLock()
	o.Tell() // wrong
	i.mu.RUnlock()
}

// ByTwoCalls calls a method that calls such a method.
func (i *Inner) ByTwoCalls(o *Outer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if o != nil {
		i.pass(o) // wrong
	}
}

func (i *Inner) pass(o *Outer) { o.Tell() }

// ByInterface does not name whose method it calls.
func (i *Inner) ByInterface() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.host.Tell() // wrong
}

// ByFunction calls a function literal.
func (i *Inner) ByFunction(o *Outer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	func() {
		o.Tell() // wrong
	}()
}
