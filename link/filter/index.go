package filter

import (
	"math/bits"
	"slices"
)

// index finds the value of the interval that a number lies in: the one that begins last at or
// before it. The numbers between two beginnings are cut into cells of equal size, as many as there
// are beginnings, and a cell with more than a few beginnings is cut again. So a search takes one or
// two steps for beginnings that are spread at random, whatever their number, and a few more where
// they lie in heaps. It does not change once made.
type index struct {
	starts []uint64 // ascending; the first is 0
	values []uint32 // by start
	nodes  []node   // the first is the root; none: there is one interval
	cells  []cell
}

// node cuts the numbers from base on into cells of 1<<shift.
type node struct {
	base  uint64
	shift uint8
	first uint32 // of its cells
	count uint32
	below uint32 // the value in front of base
	above uint32 // the value behind the last cell
}

// cell describes a part of the numbers.
type cell struct {
	value uint32 // of the interval that its first number lies in
	// run says how many starts are in the cell, in the low bits, and above them which is the first;
	// or that it is cut, and the number of its node.
	run uint32
}

const (
	runBits  = 3
	runLimit = 4 // starts of a cell that are looked at one by one
	cut      = 1<<runBits - 1
	maxCells = 1 << 20
)

// newIndex makes an index of intervals, of which each start but the first is greater than the one
// before.
func newIndex(starts []uint64, values []uint32) *index {
	x := &index{starts: starts, values: values}
	if len(starts) > 1 {
		x.cutNode(1, len(starts))
	}
	return x
}

// cutNode adds a node for the starts from a to b, and returns its number.
func (x *index) cutNode(a, b int) uint32 {
	at := len(x.nodes)
	n := node{base: x.starts[a], below: x.values[a-1], above: x.values[b-1],
		first: uint32(len(x.cells))}
	width := min(bits.Len(uint(b-a)), bits.Len(uint(maxCells))-1)
	n.shift = uint8(max(0, bits.Len64(x.starts[b-1]-n.base)-width))
	n.count = uint32((x.starts[b-1]-n.base)>>n.shift) + 1
	x.nodes = append(x.nodes, n)
	x.cells = slices.Grow(x.cells, int(n.count))[:len(x.cells)+int(n.count)]
	from := a
	for i := range n.count {
		to := from
		for to < b && (x.starts[to]-n.base)>>n.shift == uint64(i) {
			to++
		}
		c := cell{x.values[from-1], uint32(from)<<runBits | uint32(min(to-from, cut))}
		if to-from > runLimit {
			c.run = x.cutNode(from, to)<<runBits | cut
		}
		x.cells[n.first+i] = c
		from = to
	}
	return uint32(at)
}

// find returns the value of a number's interval.
func (x *index) find(key uint64) uint32 {
	if len(x.nodes) == 0 {
		return x.values[0]
	}
	n := &x.nodes[0]
	for {
		if key < n.base {
			return n.below
		}
		i := (key - n.base) >> n.shift
		if i >= uint64(n.count) {
			return n.above
		}
		c := x.cells[uint64(n.first)+i]
		switch count, at := c.run&cut, c.run>>runBits; count {
		case 0:
			return c.value
		case cut:
			n = &x.nodes[at]
		default:
			for i, start := range x.starts[at : at+count] {
				if start > key {
					break
				}
				c.value = x.values[int(at)+i]
			}
			return c.value
		}
	}
}

// within marks a value of addressIndex.high: the low words count, too.
const within = 1 << 31

// addressIndex finds the value of an address's interval.
type addressIndex struct {
	high *index   // by the first word; a value with the bit within is a place in low
	low  []*index // by the second word
}

func (x *addressIndex) find(a address) uint32 {
	v := x.high.find(a.hi)
	if v&within != 0 {
		return x.low[v&^within].find(a.lo)
	}
	return v
}

// boundary says that an interval of addresses begins, and what its value is.
type boundary struct {
	at    address
	value uint32
}

// newAddressIndex makes an index of intervals in ascending order, of which the first begins at the
// first address.
func newAddressIndex(all []boundary) *addressIndex {
	x := &addressIndex{}
	var starts []uint64
	var values []uint32
	set := func(start uint64, value uint32) {
		if n := len(starts); n > 0 && starts[n-1] == start {
			values[n-1] = value
		} else if n == 0 || values[n-1] != value {
			starts, values = append(starts, start), append(values, value)
		}
	}
	before := all[0].value
	for len(all) > 0 {
		hi, n := all[0].at.hi, 0
		for n < len(all) && all[n].at.hi == hi {
			n++
		}
		last := all[n-1].value
		if n == 1 && all[0].at.lo == 0 {
			set(hi, last)
		} else {
			set(hi, within|x.addLow(all[:n], before))
			if hi != highest(6).hi {
				set(hi+1, last)
			}
		}
		before, all = last, all[n:]
	}
	x.high = newIndex(starts, values)
	return x
}

// addLow adds an index of the second words of boundaries with one first word. before is the value
// in front of them.
func (x *addressIndex) addLow(all []boundary, before uint32) uint32 {
	starts, values := []uint64{0}, []uint32{before}
	if all[0].at.lo == 0 {
		values[0], all = all[0].value, all[1:]
	}
	for _, b := range all {
		starts, values = append(starts, b.at.lo), append(values, b.value)
	}
	x.low = append(x.low, newIndex(starts, values))
	return uint32(len(x.low) - 1)
}
