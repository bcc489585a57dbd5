package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// keepOpen is a writer that is not to be closed.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// captureFile is one or several files of a capture. The zero value with a name is ready.
type captureFile struct {
	name  string
	limit int64 // bytes; 0: one file
	ring  int   // files; 0: as many as it takes

	out    io.WriteCloser
	header []byte // section and interface, with which each file begins
	size   int64
	number int // of the file
}

// captureCounts are frames.
type captureCounts struct{ frames, lost uint64 }

// Block types and the option of what was lost, as package capture writes them.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockStats     = 5
	blockPacket    = 6
	optLost        = 5
	// maxBlock is more than any block has.
	maxBlock = 1 << 20
)

// copy writes the blocks of from, whole ones, and counts them.
func (c *captureFile) copy(from io.Reader) (n captureCounts, err error) {
	in := bufio.NewReaderSize(from, maxBlock)
	for {
		block, err := nextBlock(in)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		switch binary.LittleEndian.Uint32(block) {
		case blockSection, blockInterface:
			c.header = append(c.header, block...)
			if binary.LittleEndian.Uint32(block) == blockInterface {
				err = c.begin()
			}
		case blockPacket:
			n.frames++
			err = c.write(block)
		default:
			n.lost = lostOf(block)
			err = c.write(block)
		}
		if err != nil {
			return n, err
		}
	}
}

// nextBlock reads one block. It is valid until the next call.
func nextBlock(in *bufio.Reader) ([]byte, error) {
	h, err := in.Peek(8)
	if len(h) == 0 && err != nil {
		return nil, err
	}
	if len(h) < 8 {
		return nil, errors.New("the capture ends in the middle of a frame: the server has gone")
	}
	size := int(binary.LittleEndian.Uint32(h[4:]))
	if size < 12 || size > maxBlock || size%4 != 0 {
		return nil, fmt.Errorf("the capture has a block of %d bytes, which no server writes", size)
	}
	block, err := in.Peek(size)
	if err != nil {
		return nil, errors.New("the capture ends in the middle of a frame: the server has gone")
	}
	in.Discard(size)
	return block, nil
}

// begin opens the next file, unless out is set from outside, and writes the header.
func (c *captureFile) begin() error {
	if c.out == nil {
		f, err := os.OpenFile(c.path(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		c.out = f
	}
	n, err := c.out.Write(c.header)
	c.size = int64(n)
	return err
}

// path is the file's name, as tcpdump makes it.
func (c *captureFile) path() string {
	switch {
	case c.ring > 0:
		width := len(fmt.Sprint(c.ring - 1))
		return fmt.Sprintf("%s%0*d", c.name, width, c.number%c.ring)
	case c.number > 0:
		return fmt.Sprint(c.name, c.number)
	}
	return c.name
}

func (c *captureFile) write(block []byte) error {
	if c.out == nil {
		return errors.New("the capture begins without a header, which no server does")
	}
	if c.limit > 0 && c.size+int64(len(block)) > c.limit && c.size > int64(len(c.header)) {
		if err := c.close(); err != nil {
			return err
		}
		c.number++
		if err := c.begin(); err != nil {
			return err
		}
	}
	n, err := c.out.Write(block)
	c.size += int64(n)
	return err
}

// close may be called again.
func (c *captureFile) close() error {
	if c.out == nil {
		return nil
	}
	err := c.out.Close()
	c.out = nil
	return err
}

// lostOf reads how many frames were lost from a block of statistics; 0 from any other.
func lostOf(block []byte) uint64 {
	if binary.LittleEndian.Uint32(block) != blockStats || len(block) < 24 {
		return 0
	}
	for o := block[20 : len(block)-4]; len(o) >= 4; {
		code, size := binary.LittleEndian.Uint16(o), int(binary.LittleEndian.Uint16(o[2:]))
		if code == optLost && size == 8 && len(o) >= 12 {
			return binary.LittleEndian.Uint64(o[4:])
		}
		if size = 4 + (size+3)&^3; size > len(o) {
			return 0
		}
		o = o[size:]
	}
	return 0
}
