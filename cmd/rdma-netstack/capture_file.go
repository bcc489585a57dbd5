package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rdma-netstack/rdma-netstack/link/capture"
)

// keepOpen hides the Close of a writer.
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

// copy writes the blocks of from, whole ones, and counts them.
func (c *captureFile) copy(from io.Reader) (n captureCounts, err error) {
	in := capture.NewSplitter(from)
	for {
		block, err := in.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		switch block.Kind {
		case capture.BlockHeader:
			c.header = append(c.header, block.Bytes...)
		case capture.BlockLink:
			c.header = append(c.header, block.Bytes...)
			err = c.begin()
		case capture.BlockFrame:
			n.frames++
			err = c.write(block.Bytes)
		case capture.BlockCounts:
			n.lost = block.Lost
			err = c.write(block.Bytes)
		}
		if err != nil {
			return n, err
		}
	}
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

// path returns the file's name, as tcpdump makes it.
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
