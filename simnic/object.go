package simnic

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

// numbers allocates object numbers: sparse and out of order, so that a driver that swaps bytes or
// confuses two of them fails. All kinds share one space, because the mlx5 driver keeps queues of
// different kinds in one table by number.
type numbers struct {
	mu   sync.Mutex
	rand *rand.Rand
	used map[uint32]any
}

func (t *numbers) initNumbers(seed uint64) {
	t.rand = rand.New(rand.NewPCG(seed, 0x6e756d))
	t.used = map[uint32]any{}
}

// addObject stores obj under a free number of at most bits bits, never 0 or 1.
func (t *numbers) addObject(obj any, bits uint) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		n := t.rand.Uint32N(1<<bits-2) + 2
		if _, taken := t.used[n]; !taken {
			t.used[n] = obj
			return n
		}
	}
}

// AllocNumber gives owner a free number of at most bits bits from the space that all objects of the
// NIC share. FreeNumber frees it.
func (n *NIC) AllocNumber(owner any, bits uint) uint32 { return n.numbers.addObject(owner, bits) }

// FreeNumber frees a number of AllocNumber.
func (n *NIC) FreeNumber(number uint32) { n.numbers.removeNumber(number) }

// Objects counts the objects of a NIC that exist, for tests that look for leaks.
type Objects struct {
	Numbers     int // queues, tables, TIRs and what AllocNumber numbers
	Flows       int // flow rules
	Subscribers int // of NIC.Subscribe
}

// Objects counts the objects that exist.
func (n *NIC) Objects() Objects {
	n.numbers.mu.Lock()
	o := Objects{Numbers: len(n.numbers.used)}
	n.numbers.mu.Unlock()
	n.steering.mu.Lock()
	o.Flows = n.steering.count
	n.steering.mu.Unlock()
	n.sinkMu.Lock()
	o.Subscribers = len(n.sinks)
	n.sinkMu.Unlock()
	return o
}

func (t *numbers) removeNumber(n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.used, n)
}

// lookupNumber finds the object of type T with that number.
func lookupNumber[T any](t *numbers, n uint32) (obj T, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	obj, ok = t.used[n].(T)
	return obj, ok
}

// allOfType returns every object of type T, in the order of their numbers.
func allOfType[T any](t *numbers) (objs []T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(t.used)) {
		if obj, ok := t.used[n].(T); ok {
			objs = append(objs, obj)
		}
	}
	return objs
}

// CQ finds a completion queue by its number.
func (n *NIC) CQ(number uint32) (*CQ, bool) { return lookupNumber[*CQ](&n.numbers, number) }

// SQ finds a send queue by its number.
func (n *NIC) SQ(number uint32) (*SQ, bool) { return lookupNumber[*SQ](&n.numbers, number) }

// RQ finds a receive queue by its number.
func (n *NIC) RQ(number uint32) (*RQ, bool) { return lookupNumber[*RQ](&n.numbers, number) }

// RQT finds an indirection table by its number.
func (n *NIC) RQT(number uint32) (*RQT, bool) { return lookupNumber[*RQT](&n.numbers, number) }

// TIR finds a transport receive object by its number.
func (n *NIC) TIR(number uint32) (*TIR, bool) { return lookupNumber[*TIR](&n.numbers, number) }

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
