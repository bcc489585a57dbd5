package filter

import (
	"math/bits"
	"slices"
)

// index finds the value of the interval that a number lies in: the one that begins last at or
// before it. The numbers between two beginnings are cut into cells of equal size, about eight times
// as many as there are beginnings, and a cell with more than a few beginnings is cut again. So a
// search takes one step for most beginnings that are spread at random, whatever their number, and a
// few more where they lie in heaps. It does not change once made.
type index struct {
	root   node
	starts []start // ascending; the first is at 0
	nodes  []node  // for cells that are cut
}

// start says that an interval begins.
type start struct {
	at    uint64
	value uint32 // at most maxValue
}

// node cuts some of the numbers into cells of 1<<shift, each of which begins at a multiple of that.
type node struct {
	base  uint64 // the first number, in cells
	shift uint8
	below uint32 // the value in front of the cells
	above uint32 // the value behind them
	cells []cell
}

// cell describes a part of the numbers: it is the value of all of them; or else says, with the bit
// mixed, that intervals begin in it: how many, in the low bits, and above them which is the first;
// or that it is cut, and the number of its node.
type cell uint32

const (
	mixed    = 1 << 31
	maxValue = mixed - 1
	runBits  = 3
	runLimit = 4 // starts of a cell that are looked at one by one
	cut      = 1<<runBits - 1
	maxCells = 1 << 20
)

// newIndex makes an index of intervals, of which each start but the first is greater than the one
// before, with about 1<<least cells or more.
func newIndex(starts []start, least int) index {
	x := index{starts: starts}
	if len(starts) == 1 {
		x.root = node{shift: 63, cells: []cell{cell(starts[0].value), cell(starts[0].value)}}
		return x
	}
	x.root = x.cutNode(1, len(starts), least)
	return x
}

// cutNode makes a node for the starts from a to b.
func (x *index) cutNode(a, b, least int) node {
	first, last := x.starts[a].at, x.starts[b-1].at
	width := min(max(bits.Len(uint(b-a))+3, least), bits.Len(uint(maxCells))-1)
	n := node{shift: uint8(max(0, bits.Len64(last-first)-width)), below: x.starts[a-1].value,
		above: x.starts[b-1].value}
	n.base = first >> n.shift
	n.cells = make([]cell, last>>n.shift-n.base+1)
	from := a
	for i := range n.cells {
		to := from
		for to < b && x.starts[to].at>>n.shift == n.base+uint64(i) {
			to++
		}
		switch {
		case to == from:
			n.cells[i] = cell(x.starts[from-1].value)
		case to-from <= runLimit:
			n.cells[i] = mixed | cell(from)<<runBits | cell(to-from)
		default:
			at := len(x.nodes)
			x.nodes = append(x.nodes, node{})
			x.nodes[at] = x.cutNode(from, to, 0)
			n.cells[i] = mixed | cell(at)<<runBits | cut
		}
		from = to
	}
	return n
}

// look returns the cell of a number; the bit mixed, if it is in none.
func (x *index) look(key uint64) cell {
	i := key>>(x.root.shift&63) - x.root.base
	if i < uint64(len(x.root.cells)) {
		return x.root.cells[i]
	}
	return mixed
}

// find returns the value of a number's interval.
func (x *index) find(key uint64) uint32 {
	if c := x.look(key); c < mixed {
		return uint32(c)
	}
	return x.findFurther(key)
}

// findFurther does what find does where one look is not enough.
func (x *index) findFurther(key uint64) uint32 {
	n := &x.root
	for {
		at := key >> (n.shift & 63)
		if at < n.base {
			return n.below
		}
		i := at - n.base
		if i >= uint64(len(n.cells)) {
			return n.above
		}
		c := n.cells[i]
		if c < mixed {
			return uint32(c)
		}
		count, from := c&cut, c&^mixed>>runBits
		if count == cut {
			n = &x.nodes[from]
			continue
		}
		value := x.starts[from-1].value
		for _, s := range x.starts[from : from+count] {
			if next := s.value; s.at <= key {
				value = next
			}
		}
		return value
	}
}

// within marks a value of addressIndex.high: the low words count, too.
const within = 1 << 30

// addressIndex finds the value of an address's interval.
type addressIndex struct {
	high index   // by the first word; a value with the bit within is a place in low
	low  []index // by the second word
}

func (x *addressIndex) find(a address) uint32 {
	v := x.high.find(a.hi)
	if v&within != 0 {
		return x.low[v&^within].find(a.lo)
	}
	return v
}

// boundary says that an interval of addresses begins, and what its value is: less than within.
type boundary struct {
	at    address
	value uint32
}

// sourceCells says how many cells the addresses of sources are cut into at least, as the number of
// bits: with few prefixes nearly all sources are in cells without any.
const sourceCells = 14

// newAddressIndex makes an index of intervals in ascending order, of which the first begins at the
// first address, with about 1<<least cells or more.
func newAddressIndex(all []boundary, least int) *addressIndex {
	x := &addressIndex{}
	var starts []start
	set := func(at uint64, value uint32) {
		if n := len(starts); n > 0 && starts[n-1].at == at {
			starts[n-1].value = value
		} else if n == 0 || starts[n-1].value != value {
			starts = append(starts, start{at, value})
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
	x.high = newIndex(slices.Clip(starts), least)
	return x
}

// addLow adds an index of the second words of boundaries with one first word. before is the value
// in front of them.
func (x *addressIndex) addLow(all []boundary, before uint32) uint32 {
	starts := []start{{0, before}}
	if all[0].at.lo == 0 {
		starts[0].value, all = all[0].value, all[1:]
	}
	for _, b := range all {
		starts = append(starts, start{b.at.lo, b.value})
	}
	x.low = append(x.low, newIndex(starts, 0))
	return uint32(len(x.low) - 1)
}
