package filter

import "math/bits"

// cell describes a part of the numbers: it holds the value of all of them; or else says, with the
// bit mixed, that a few intervals begin in it, of which it has the number of the first above
// runBits bits; or, with these bits set, that it is cut, and the number of its node.
type cell uint32

const (
	mixed    = 1 << 31
	maxValue = mixed - 1
	runBits  = 3
	runLimit = 4 // starts of a cell that are looked at
	cut      = 1<<runBits - 1
	maxCells = 1 << 20
)

// cellArray holds cells of which most have one of the least values, so that those of 10,000
// prefixes fit in a near cache. It does not change once made.
type cellArray struct {
	count  int
	codes  []uint64 // of 32 cells each, 2 bits from the lowest on: the value, or else rest
	firsts []uint32 // where in rests those of each word begin
	rests  []cell   // the cells that are rest in codes
	// below and above hold the codes in front of the cells and behind them. Numbers of cells up to
	// lastAbove that are not there are behind, others, of a difference below 0, in front.
	below, above uint8
	lastAbove    uint64
}

const (
	cellsInWord = 32
	rest        = 3
	lowBits     = 0x5555_5555_5555_5555 // of each code
)

// newCellArray makes an array of cells from the one with the number base on, between numbers of two
// values.
func newCellArray(base uint64, below uint32, cells []cell, above uint32) cellArray {
	words := (len(cells) + cellsInWord - 1) / cellsInWord
	a := cellArray{count: len(cells), codes: make([]uint64, words), firsts: make([]uint32, words),
		below: uint8(codeOf(below)), above: uint8(codeOf(above)), lastAbove: ^base}
	for i, c := range cells {
		if i%cellsInWord == 0 {
			a.firsts[i/cellsInWord] = uint32(len(a.rests))
		}
		a.codes[i/cellsInWord] |= uint64(min(c, rest)) << (i % cellsInWord * 2)
		if c >= rest {
			a.rests = append(a.rests, c)
		}
	}
	if left := len(cells) % cellsInWord; left > 0 {
		a.codes[words-1] |= uint64(a.above) * lowBits << (left * 2) // behind the last
	}
	return a
}

// code returns the value of a cell, given its number less that of the first, or else rest.
func (a *cellArray) code(i uint64) uint8 {
	if at := i / cellsInWord; at < uint64(len(a.codes)) {
		return uint8(a.codes[at]>>(i%cellsInWord*2)) & rest
	}
	if i <= a.lastAbove {
		return a.above
	}
	return a.below
}

// at returns a cell that is there.
func (a *cellArray) at(i uint64) cell {
	codes, place := a.codes[i/cellsInWord], i%cellsInWord*2
	if code := codes >> place & rest; code != rest {
		return cell(code)
	}
	before := codes & (codes >> 1) & lowBits & (1<<place - 1)
	return a.rests[a.firsts[i/cellsInWord]+uint32(bits.OnesCount64(before))]
}
