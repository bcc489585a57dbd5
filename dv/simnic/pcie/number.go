package pcie

// numberKind is a space of numbers the firmware hands out that stand for nothing in the model but themselves.
type numberKind int

const (
	kindUAR numberKind = iota
	kindPD
	kindTransportDomain
	kindXRCD
	kindCounter
	kindTIS
	kindQueue // QP, SRQ, RMP and XRC SRQ of the driver's own use: one space, so that no two kinds share a number
	numKinds
)

// numbers hands out the lowest free number of a space. The server's goroutine owns it.
type numbers struct{ used map[uint32]bool }

// take returns the lowest free number that is at least first.
func (n *numbers) take(first uint32) uint32 {
	if n.used == nil {
		n.used = map[uint32]bool{}
	}
	v := first
	for n.used[v] {
		v++
	}
	n.used[v] = true
	return v
}

// give returns a number and reports whether it was taken.
func (n *numbers) give(v uint32) bool {
	ok := n.used[v]
	delete(n.used, v)
	return ok
}
