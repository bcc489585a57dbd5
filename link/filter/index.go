package filter

import (
	"math"
	"math/bits"
	"slices"
)

// index finds the value of the interval that a number lies in: the one that begins last at or
// before it. The numbers between two beginnings are cut into cells of equal size, many times as
// many as there are beginnings, and a cell with more than a few beginnings is cut again. So a
// search takes one step for most beginnings that are spread at random, whatever their number, and a
// few more where they lie in heaps. With runs the cells with a few beginnings take one step as
// well, if the values are codes. It does not change once made.
type index struct {
	root  node
	runs  runArray // of cells of the root that are rest
	nodes []node   // for cells that are cut
	// starts holds where intervals begin, ascending, of which the first is at 0, and behind them
	// runLimit - 1 times that the last goes on.
	starts []start
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
	cells cellArray
}

// rootCells and nodeCells say how many cells there are for each start, about, as the number of
// bits.
const (
	rootCells = 4
	nodeCells = 3
)

// newIndex makes an index of intervals, of which each start but the first is greater than the one
// before, with about 1<<least cells or more.
func newIndex(starts []start, least int) index {
	n := len(starts)
	x := index{starts: append(slices.Grow([]start{}, n+runLimit), starts...)}
	for range runLimit - 1 {
		x.starts = append(x.starts, start{math.MaxUint64, starts[n-1].value})
	}
	if n == 1 {
		all := starts[0].value
		x.root = node{shift: 63, cells: newCellArray(0, all, []cell{cell(all), cell(all)}, all)}
		return x
	}
	x.root = x.cutNode(1, n, max(least, bits.Len(uint(n-1))+rootCells))
	return x
}

// addRuns makes runs, with lanes of which width is enough for most cells.
func (x *index) addRuns() {
	starts := x.starts[:len(x.starts)-(runLimit-1)]
	cells, known := &x.root.cells, 0
	for _, width := range []int{16, 32} {
		runs, from, n := newRunArray(width, &x.root), 1, 1
		rows := make([][cellsInWord]uint64, len(cells.codes))
		for i := range len(cells.codes) * cellsInWord { // those behind the last as well
			to := from
			for to < len(starts) && starts[to].at>>x.root.shift == x.root.base+uint64(i) {
				to++
			}
			if cells.code(uint64(i)) == rest {
				word := runs.makeWord(starts[from-1].value, starts[from:to])
				rows[i/cellsInWord][i%cellsInWord] = word
				if word != runs.unknownWord() {
					n++
				}
			}
			from = to
		}
		if n > known {
			runs.placeWords(rows)
			x.runs, known = runs, n
		}
	}
}

// cutNode makes a node for the starts from a to b.
func (x *index) cutNode(a, b, least int) node {
	first, last := x.starts[a].at, x.starts[b-1].at
	width := min(max(bits.Len(uint(b-a))+nodeCells, least), bits.Len(uint(maxCells))-1)
	n := node{shift: uint8(max(0, bits.Len64(last-first)-width)), below: x.starts[a-1].value,
		above: x.starts[b-1].value}
	n.base = first >> n.shift
	cells := make([]cell, last>>n.shift-n.base+1)
	from := a
	for i := range cells {
		to := from
		for to < b && x.starts[to].at>>n.shift == n.base+uint64(i) {
			to++
		}
		switch {
		case to == from:
			cells[i] = cell(x.starts[from-1].value)
		case to-from <= runLimit:
			cells[i] = mixed | cell(from)<<runBits
		default:
			at := len(x.nodes)
			x.nodes = append(x.nodes, node{})
			x.nodes[at] = x.cutNode(from, to, 0)
			cells[i] = mixed | cell(at)<<runBits | cut
		}
		from = to
	}
	n.cells = newCellArray(n.base, n.below, cells, n.above)
	return n
}

// look returns the value of a number's interval if one look is enough to tell; else rest.
func (x *index) look(key uint64) uint8 { return x.root.cells.code(x.cellOf(key)) }

// cellOf returns the number of a cell of the root, which may not be there.
func (x *index) cellOf(key uint64) uint64 { return key>>(x.root.shift&63) - x.root.base }

// find returns the value of a number's interval.
func (x *index) find(key uint64) uint32 {
	if v := x.look(key); v != rest {
		return uint32(v)
	}
	return x.findInside(key)
}

// findInside does what find does where the cell of the root is rest.
func (x *index) findInside(key uint64) uint32 {
	if v := x.runs.codeIn(x.runs.wordOf(x.cellOf(key)), key); v != rest {
		return uint32(v)
	}
	return x.findFurther(key)
}

// findFurther does what find does by the starts.
func (x *index) findFurther(key uint64) uint32 {
	n := &x.root
	for {
		at := key >> (n.shift & 63)
		if at < n.base {
			return n.below
		}
		i := at - n.base
		if i >= uint64(n.cells.count) {
			return n.above
		}
		c := n.cells.at(i)
		if c < mixed {
			return uint32(c)
		}
		from := c &^ mixed >> runBits
		if c&cut == cut {
			n = &x.nodes[from]
			continue
		}
		// Those that begin in later cells are greater than the number.
		run := (*[1 + runLimit]start)(x.starts[from-1:])
		value := run[0].value
		for i := 1; i < len(run); i++ {
			if next := run[i].value; run[i].at <= key {
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

func (x *addressIndex) find(a address) uint32 { return x.within(x.high.find(a.hi), a) }

// within returns the value of an address, given that of its first word.
func (x *addressIndex) within(v uint32, a address) uint32 {
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
