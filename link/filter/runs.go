package filter

import (
	"math"
	"math/bits"
	"slices"
)

// runArray tells the code of a number in a cell in which a few intervals begin, by one word for
// each such cell: as many lanes as it has room for, each with the offset of a beginning in the cell
// and the code in front of it. A number's offset is compared with those of all lanes at once. It
// does not change once made.
type runArray struct {
	// words holds those of cells, places where in it those of each word of cellArray.codes would
	// be from the first cell on: what one leaves free others fill.
	words  []uint64
	places []uint32
	unit   uint8  // offsets count so many numbers, as the number of bits
	in     uint64 // bits of an offset
	// Lanes are ascending, of equal width, the highest bit of each 0. An offset times spread, plus
	// most, holds it in each lane, above the highest code and below a bit of guards, which stays
	// if the lane's beginning is subtracted that is not greater. Those that stay, halved and times
	// shifts, have in the highest 6 bits by how much to shift for the code of the lane above them;
	// that of the lowest lane comes behind the highest.
	spread, most, guards, shifts uint64
}

const codeBits = 2

// newRunArray prepares an array for the cells of a node, with lanes of 16 or 32 bits.
func newRunArray(width int, n *node) runArray {
	ones := uint64(1)
	for at := width; at < 64; at += width {
		ones |= 1 << at
	}
	a := runArray{spread: ones << codeBits,
		unit:   uint8(max(0, int(n.shift)-(width-codeBits-1))),
		guards: ones << (width - 1), shifts: ones * uint64(width/16)}
	a.most = a.guards | ones*rest
	a.in = 1<<(n.shift-a.unit) - 1
	return a
}

// unknownWord returns the word of a cell of which the starts have to be looked at.
func (a *runArray) unknownWord() uint64 { return a.spread >> codeBits * rest }

// makeWord returns the word of a cell, in which the intervals of run begin, behind one with the
// value before. It is not 0.
func (a *runArray) makeWord(before uint32, run []start) uint64 {
	lanes := bits.OnesCount64(a.guards)
	width, first := 64/lanes, lanes-len(run)
	if first < 0 || len(run) == 0 {
		return a.unknownWord()
	}
	// Lanes that are not needed begin with the cell, so that the lowest follows the last.
	word, code := uint64(0), codeOf(before)
	for i, s := range run {
		if s.at&(1<<a.unit-1) != 0 {
			return a.unknownWord()
		}
		word |= (s.at>>a.unit&a.in<<codeBits | code) << ((first + i) * width)
		code = codeOf(s.value)
	}
	if first == 0 && word&rest != code {
		return a.unknownWord()
	}
	return word | code
}

// codeOf returns the code of a value.
func codeOf(value uint32) uint64 { return uint64(min(value, rest)) }

// placeWords gives the words of cells their places: those of 32 cells each, 0 of cells that are not
// rest. Rows with many words come first, each behind those with as many, the others fill the gaps.
func (a *runArray) placeWords(rows [][cellsInWord]uint64) {
	a.places = make([]uint32, len(rows))
	masks := make([]uint32, len(rows))
	var of [cellsInWord + 1][]int // rows by how many words they have
	for i, row := range rows {
		for j, word := range row {
			if word != 0 {
				masks[i] |= 1 << j
			}
		}
		n := bits.OnesCount32(masks[i])
		of[n] = append(of[n], i)
	}
	for n := cellsInWord; n > 0; n-- {
		at := 0
		for _, i := range of[n] {
			for !a.hasRoom(at, masks[i]) {
				at++
			}
			a.places[i] = uint32(at)
			for j, word := range rows[i] {
				if word != 0 {
					a.words[at+j] = word
				}
			}
		}
	}
	a.words = slices.Clip(a.words)
}

// hasRoom reports whether a row's words find room from a place on, of which it makes more at the
// end.
func (a *runArray) hasRoom(at int, mask uint32) bool {
	for len(a.words) < at+cellsInWord {
		a.words = append(a.words, 0)
	}
	for ; mask != 0; mask &= mask - 1 {
		if a.words[at+bits.TrailingZeros32(mask)] != 0 {
			return false
		}
	}
	return true
}

// wordOf returns the word of a cell that is rest; that of one that is not there tells nothing.
func (a *runArray) wordOf(cell uint64) uint64 {
	if at := cell / cellsInWord; at < uint64(len(a.places)) {
		if i := uint64(a.places[at]) + cell%cellsInWord; i < uint64(len(a.words)) {
			return a.words[i]
		}
	}
	return math.MaxUint64
}

// codeIn returns the code of a number, given its cell's word: rest, if it takes more to tell.
func (a *runArray) codeIn(word, key uint64) uint8 {
	reached := (key>>(a.unit&63)&a.in*a.spread + a.most - word) & a.guards
	return uint8(word>>(reached>>1*a.shifts>>58)) & rest
}
