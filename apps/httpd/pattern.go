package httpd

import (
	"encoding/binary"
	"errors"
	"io"
)

// FillPattern writes into p the bytes of /-/bytes at offset off: the little-endian 64-bit word
// number w (from 0) is (w+1)*0x9e3779b97f4a7c15, so that lost, duplicated, moved or swapped bytes
// are detected.
func FillPattern(p []byte, off int64) {
	var word [8]byte
	for len(p) > 0 {
		w := uint64(off)/8 + 1
		skip := int(uint64(off) % 8)
		if skip == 0 && len(p) >= 8 {
			n := len(p) &^ 7
			for i := 0; i < n; i += 8 {
				binary.LittleEndian.PutUint64(p[i:], w*0x9e3779b97f4a7c15)
				w++
			}
			p, off = p[n:], off+int64(n)
			continue
		}
		binary.LittleEndian.PutUint64(word[:], w*0x9e3779b97f4a7c15)
		n := copy(p, word[skip:])
		p, off = p[n:], off+int64(n)
	}
}

// pattern is an io.ReadSeeker over the first size bytes of the pattern; one goroutine's.
type pattern struct{ size, off int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.off >= p.size {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), p.size-p.off)]
	FillPattern(b, p.off)
	p.off += int64(len(b))
	return len(b), nil
}

func (p *pattern) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.off
	case io.SeekEnd:
		offset += p.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start of the pattern")
	}
	p.off = offset
	return offset, nil
}
