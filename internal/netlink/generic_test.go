package netlink

import (
	"bytes"
	"testing"
)

func TestGenericHeader(t *testing.T) {
	h := GenericHeader{Command: 0x15, Version: 2}
	if b := h.Serialize(); !bytes.Equal(b, []byte{0x15, 2, 0, 0}) || h.Len() != len(b) {
		t.Errorf("% x, length %d", b, h.Len())
	}
}
