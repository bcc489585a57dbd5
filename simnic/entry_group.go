package simnic

// entryGroup holds the entries of a table with one mask, of which a frame matches one at most. It
// is never changed: with and without return another one, which shares with it all nodes but those
// on the way to the entry, some log2 of their number. Nothing here depends on memory addresses or
// on seeds of the process, so that worlds of tests repeat.
type entryGroup struct {
	mask MatchKey
	root *entryNode
}

// entryNode represents a node of a search tree by the values that entries match, which is at the
// same time a heap by weights that depend on the values alone: a treap, balanced whatever the order
// in which entries come.
type entryNode struct {
	entry       *entry
	weight      uint64 // that of no child is greater
	left, right *entryNode
}

// find returns the entry that matches a frame's key, or nil.
func (g *entryGroup) find(k *MatchKey) *entry {
	for n := g.root; n != nil; {
		switch c := k.compareMasked(&g.mask, &n.entry.match.Value); {
		case c == 0:
			return n.entry
		case c < 0:
			n = n.left
		default:
			n = n.right
		}
	}
	return nil
}

// with returns the group with e, instead of an entry with its value if there is one.
func (g *entryGroup) with(e *entry) entryGroup {
	return entryGroup{g.mask, g.root.with(e)}
}

// without returns the group without the entry that has this value.
func (g *entryGroup) without(value *MatchKey) entryGroup {
	return entryGroup{g.mask, g.root.without(&g.mask, value)}
}

// compareMasked compares the part of k below a mask with v, word by word.
func (k *MatchKey) compareMasked(mask, v *MatchKey) int {
	for i := range mask {
		if have := k[i] & mask[i]; have != v[i] {
			if have < v[i] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// weight mixes the words of a key (the finalizer of SplitMix64).
func (k *MatchKey) weight() (z uint64) {
	for _, w := range k {
		z ^= w + 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
	}
	return z
}

// with returns a new node: the root of n's tree with e.
func (n *entryNode) with(e *entry) *entryNode {
	if n == nil {
		return &entryNode{entry: e, weight: e.match.Value.weight()}
	}
	root := *n
	switch c := e.match.Value.compareMasked(&e.match.Mask, &n.entry.match.Value); {
	case c == 0:
		root.entry = e
	case c < 0:
		root.left = n.left.with(e)
		if l := root.left; l.weight > root.weight {
			root.left, l.right = l.right, &root
			return l
		}
	default:
		root.right = n.right.with(e)
		if r := root.right; r.weight > root.weight {
			root.right, r.left = r.left, &root
			return r
		}
	}
	return &root
}

// without returns the root of n's tree without the entry that has this value.
func (n *entryNode) without(mask, value *MatchKey) *entryNode {
	if n == nil {
		return nil
	}
	root := *n
	switch c := value.compareMasked(mask, &n.entry.match.Value); {
	case c == 0:
		return joined(n.left, n.right)
	case c < 0:
		root.left = n.left.without(mask, value)
	default:
		root.right = n.right.without(mask, value)
	}
	return &root
}

// joined returns the root of one tree of two, of which all values of left come before right's.
func joined(left, right *entryNode) *entryNode {
	switch {
	case left == nil:
		return right
	case right == nil:
		return left
	case left.weight > right.weight:
		root := *left
		root.right = joined(left.right, right)
		return &root
	}
	root := *right
	root.left = joined(left, right.left)
	return &root
}
