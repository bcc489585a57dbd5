package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// The classic capture file (draft-ietf-opsawg-pcap), link type Ethernet. Files are written
// little-endian with nanosecond times; both byte orders and both resolutions are read.
const (
	pcapMagicMicro = 0xa1b2c3d4
	pcapMagicNano  = 0xa1b23c4d
	pcapEthernet   = 1
	pcapSnapLen    = 256 << 10 // bytes: more than any frame, so that nothing is cut
	pcapFileHdr    = 24
	pcapRecordHdr  = 16
)

// ErrNotPcap tells the reader of something else than a capture of Ethernet frames returns.
var ErrNotPcap = errors.New("wire: not a pcap file of Ethernet frames")

// putPcapFileHeader encodes the file header.
func putPcapFileHeader(b *[pcapFileHdr]byte) {
	*b = [pcapFileHdr]byte{}
	le := binary.LittleEndian
	le.PutUint32(b[0:], pcapMagicNano)
	le.PutUint16(b[4:], 2) // version 2.4
	le.PutUint16(b[6:], 4)
	le.PutUint32(b[16:], pcapSnapLen)
	le.PutUint32(b[20:], pcapEthernet)
}

// putPcapRecordHeader encodes the header of a frame of n bytes, kept whole.
func putPcapRecordHeader(b *[pcapRecordHdr]byte, at time.Time, n int) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], uint32(at.Unix()))
	le.PutUint32(b[4:], uint32(at.Nanosecond()))
	le.PutUint32(b[8:], uint32(n))
	le.PutUint32(b[12:], uint32(n))
}

// pcapReader reads one capture file from its start.
type pcapReader struct {
	r     *bufio.Reader
	order binary.ByteOrder
	tick  time.Duration // what one unit of the fraction field is worth
	buf   []byte
}

func newPcapReader(r io.Reader) (*pcapReader, error) {
	p := &pcapReader{r: bufio.NewReaderSize(r, 64<<10)}
	var h [pcapFileHdr]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return nil, fmt.Errorf("read the pcap file header: %w (%w)", ErrNotPcap, err)
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(h[0:]) {
		case pcapMagicMicro:
			p.order, p.tick = order, time.Microsecond
		case pcapMagicNano:
			p.order, p.tick = order, time.Nanosecond
		}
	}
	if p.order == nil {
		return nil, fmt.Errorf("magic %x: %w", h[0:4], ErrNotPcap)
	}
	if link := p.order.Uint32(h[20:]) & 0xffff; link != pcapEthernet {
		return nil, fmt.Errorf("link type %d: %w", link, ErrNotPcap)
	}
	return p, nil
}

// nextFrame returns the next frame and its time, or io.EOF after the last. The frame is valid until
// the next call. A file that ends inside a record is io.ErrUnexpectedEOF.
func (p *pcapReader) nextFrame() (time.Time, []byte, error) {
	var h [pcapRecordHdr]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return time.Time{}, nil, err
	}
	kept := p.order.Uint32(h[8:])
	if kept > pcapSnapLen {
		return time.Time{}, nil, fmt.Errorf("a record of %d bytes: %w", kept, ErrNotPcap)
	}
	if cap(p.buf) < int(kept) {
		p.buf = make([]byte, max(int(kept), 2048))
	}
	p.buf = p.buf[:kept]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return time.Time{}, nil, err
	}
	frac := time.Duration(p.order.Uint32(h[4:])) * p.tick
	return time.Unix(int64(p.order.Uint32(h[0:])), int64(frac)), p.buf, nil
}
