package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// BlockKind says what a block of a capture is.
type BlockKind uint8

// The kinds of blocks that WriteTo writes, in this order but that there are many frames.
const (
	BlockHeader BlockKind = iota // the section's
	BlockLink                    // describes the link, and ends what each file begins with
	BlockFrame
	BlockCounts // what was seen and lost
)

// Block describes one block of a capture.
type Block struct {
	Kind  BlockKind
	Bytes []byte // valid until the next call of Next
	Lost  uint64 // frames, of BlockCounts
}

// maxBlock is more than any block has: MaxSnaplen and options.
const maxBlock = 1 << 20

// Splitter takes what WriteTo wrote apart. One goroutine uses it.
type Splitter struct{ in *bufio.Reader }

// NewSplitter reads from from, which is not closed.
func NewSplitter(from io.Reader) *Splitter {
	return &Splitter{bufio.NewReaderSize(from, maxBlock)}
}

// Next returns the next block. The error is io.EOF behind the last.
func (s *Splitter) Next() (Block, error) {
	cut := errors.New("the capture ends in the middle of a frame: the server has gone")
	h, err := s.in.Peek(8)
	switch {
	case len(h) == 0 && err != nil:
		return Block{}, err
	case len(h) < 8:
		return Block{}, cut
	}
	size := int(binary.LittleEndian.Uint32(h[4:]))
	if size < 12 || size > maxBlock || size%4 != 0 {
		return Block{}, fmt.Errorf("the capture has a block of %d bytes, which no server writes",
			size)
	}
	b, err := s.in.Peek(size)
	if err != nil {
		return Block{}, cut
	}
	s.in.Discard(size) // they are there
	return blockOf(b)
}

// blockOf says what a whole block is.
func blockOf(b []byte) (Block, error) {
	switch kind := binary.LittleEndian.Uint32(b); kind {
	case blockSection:
		return Block{Kind: BlockHeader, Bytes: b}, nil
	case blockInterface:
		return Block{Kind: BlockLink, Bytes: b}, nil
	case blockPacket:
		return Block{Kind: BlockFrame, Bytes: b}, nil
	case blockStats:
		return Block{Kind: BlockCounts, Bytes: b, Lost: lostOf(b)}, nil
	default:
		return Block{}, fmt.Errorf("the capture has a block of type %#x, which no server writes",
			kind)
	}
}

// lostOf finds the option of a block of statistics that has the frames lost.
func lostOf(b []byte) uint64 {
	if len(b) < 24 {
		return 0
	}
	for o := b[20 : len(b)-4]; len(o) >= 4; {
		code, size := binary.LittleEndian.Uint16(o), int(binary.LittleEndian.Uint16(o[2:]))
		if code == isbDropped && size == 8 && len(o) >= 12 {
			return binary.LittleEndian.Uint64(o[4:])
		}
		if size = 4 + (size+3)&^3; size > len(o) {
			return 0
		}
		o = o[size:]
	}
	return 0
}
