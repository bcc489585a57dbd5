package pcie

// numberKind is a space of numbers that the firmware allocates without an object in the model.
type numberKind int

const (
	kindUAR numberKind = iota
	kindPD
	kindTransportDomain
	kindXRCD
	kindCounter
	kindTIS
	// QP, SRQ, RMP and XRC SRQ of the driver's own use: one space, so that no two kinds share a
	// number
	kindQueue
	numKinds
)

// numbers allocates the lowest free number of a space. The server's goroutine owns it.
type numbers struct{ used map[uint32]bool }

// maxNumbers is how many numbers of a space may be in use.
const maxNumbers = 1 << 15

// alloc returns the lowest free number that is at least first.
func (n *numbers) alloc(first uint32) (uint32, error) {
	if n.used == nil {
		n.used = map[uint32]bool{}
	}
	if len(n.used) >= maxNumbers {
		return 0, errorf(statusLimit, "all %d numbers are in use", maxNumbers)
	}
	v := first
	for n.used[v] {
		v++
	}
	n.used[v] = true
	return v, nil
}

// give frees a number and reports whether it was allocated.
func (n *numbers) give(v uint32) bool {
	ok := n.used[v]
	delete(n.used, v)
	return ok
}
