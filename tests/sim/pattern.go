package sim

import "github.com/rdma-netstack/rdma-netstack/clock/clocktest"

// pattern is bytes that a stream carries: those at an offset are known without the ones before, and
// no two places near each other look alike.
type pattern struct {
	table []byte
	shift uint64
}

// patternSize is a prime, so that no power of two of bytes repeats.
const patternSize = 65521

func newPatternTable(seed uint64) []byte {
	b := make([]byte, patternSize)
	_, _ = clocktest.Random(seed).Read(b)
	return b
}

// fill writes what the stream has at offset.
func (p pattern) fill(b []byte, offset int) {
	for len(b) > 0 {
		n := copy(b, p.table[(uint64(offset)+p.shift)%patternSize:])
		b, offset = b[n:], offset+n
	}
}

// wrong is the index of the first byte of b that is not what the stream has at offset; -1: none.
func (p pattern) wrong(b []byte, offset int) int {
	for i := 0; i < len(b); {
		piece := p.table[(uint64(offset+i)+p.shift)%patternSize:]
		piece = piece[:min(len(piece), len(b)-i)]
		if string(piece) == string(b[i:i+len(piece)]) {
			i += len(piece)
			continue
		}
		for j := range piece {
			if piece[j] != b[i+j] {
				return i + j
			}
		}
	}
	return -1
}
