package simnic

// Destination is where a classifier sends a copy of a frame.
type Destination struct {
	TIR *TIR
	Tag uint32 // 24 bits, appears in the completion
}

// Classifier appends to out where a frame with this key goes; nothing means that
// nobody wants it. It is called from many goroutines at once and must not keep
// its arguments.
type Classifier func(k *MatchKey, out []Destination) []Destination

// SetClassifier puts c in the place of the netdev side and the leftover rules,
// for a face whose driver builds the flow tables of the netdev itself. Frames on
// their way may still meet the one before. nil restores the netdev side.
func (n *NIC) SetClassifier(c Classifier) {
	if c == nil {
		n.classifier.Store(nil)
		return
	}
	n.classifier.Store(&c)
}

// classify delivers a frame to whom the classifier says.
func (n *NIC) classify(c Classifier, b *rxBurst, o origin, f *Frame, kind cast) (copies int) {
	b.found = c(&b.key, b.found[:0])
	for _, d := range b.found {
		n.counters.add(ctrRouted, f.packets())
		n.toTIR(b, d.TIR, o, f, kind, d.Tag)
	}
	return len(b.found)
}
