package mlx5

import "strings"

// WQE describes a descriptor in words, for dumps. What it does not have is zero.
type WQE struct {
	Opcode   string    `json:"opcode,omitempty"` // of a send descriptor
	Index    uint16    `json:"wqe_index"`        // likewise, as it stands there
	QPN      uint32    `json:"qpn,omitempty"`    // likewise
	DS       int       `json:"ds"`               // its length in 16-byte units
	Segments []Segment `json:"segments"`         // where its data is
	Text     string    `json:"text"`             // every field that is not zero, but no data
}

// Segment is a data segment in words.
type Segment struct {
	Inline    bool   `json:"inline,omitempty"` // the data is in the descriptor
	ByteCount uint32 `json:"byte_count"`
	LKey      uint32 `json:"lkey,omitempty"`
	Addr      uint64 `json:"addr,omitempty"`
}

// DescribeSend reads the send WQE at b[0], which may be any bytes of 16 or more. What its control
// segment says to be behind the end of b is left out.
func DescribeSend(b []byte) WQE {
	op := Opcode(CtrlOpcode.Get(b))
	w := WQE{Opcode: op.String(), Index: uint16(CtrlIndex.Get(b)), QPN: uint32(CtrlQPN.Get(b)),
		DS: int(CtrlDS.Get(b)), Segments: []Segment{}}
	text := []string{w.Opcode, CtrlLayout.String(b)}
	b = b[:min(len(b), w.DS*DSSize)]
	if op.sendsFrames() && len(b) >= CtrlSegSize+EthSegSize {
		b = b[CtrlSegSize:]
		layout, inline := &EthLayout, int(EthInlineLen.Get(b))
		if EthInsert.Get(b) != 0 {
			layout, inline = &EthInsertLayout, 0
		}
		text = append(text, layout.String(b))
		text = append(text, w.segments(b[min(len(b), EthDS(inline)*DSSize):])...)
	}
	w.Text = strings.Join(text, " ")
	return w
}

// sendsFrames reports whether an Ethernet segment is behind the control segment.
func (o Opcode) sendsFrames() bool { return o == OpSend || o == OpLSO || o == OpEnhancedMPW }

// DescribeReceive reads the data segments of a receive WQE, whose head, if it has one, is not in b.
func DescribeReceive(b []byte) WQE {
	w := WQE{DS: len(b) / DSSize, Segments: []Segment{}}
	w.Text = strings.Join(w.segments(b), " ")
	return w
}

// segments adds the data segments in b and returns each as text.
func (w *WQE) segments(b []byte) (text []string) {
	for len(b) >= DataSegSize {
		s := Segment{Inline: DataInline.Get(b) != 0, ByteCount: uint32(DataByteCount.Get(b))}
		size, layout := DataSegSize, &InlineLayout
		if s.Inline {
			size = InlineDS(min(int(s.ByteCount), len(b))) * DSSize
		} else {
			layout, s.LKey, s.Addr = &DataLayout, uint32(DataLKey.Get(b)), DataAddr.Get(b)
		}
		if !s.Inline && s.LKey == EndOfListLKey && s.ByteCount == 0 {
			break
		}
		w.Segments, text = append(w.Segments, s), append(text, layout.String(b))
		b = b[min(len(b), size):]
	}
	return text
}

// Completion describes a CQE in words, for dumps. What it does not have is zero.
type Completion struct {
	Opcode         string `json:"opcode"`
	Syndrome       string `json:"syndrome,omitempty"` // of an error
	VendorSyndrome uint8  `json:"vendor_err_synd,omitempty"`
	Owner          uint8  `json:"owner"`
	Format         uint8  `json:"format,omitempty"`
	WQECounter     uint16 `json:"wqe_counter"`
	ByteCount      uint32 `json:"byte_cnt,omitempty"`
	QPN            uint32 `json:"qpn,omitempty"`        // of a send or an error
	WQEOpcode      string `json:"wqe_opcode,omitempty"` // likewise
	Text           string `json:"text"`                 // every field that is not zero
}

// Describe reads c, which may be any bytes.
func (c *CQE) Describe() Completion {
	op := c.Opcode()
	d := Completion{Opcode: op.String(), Owner: c.Owner(), Text: c.String()}
	if op == CQEInvalid {
		return d
	}
	d.Format, d.WQECounter, d.ByteCount = c.Format(), c.WQECounter(), c.ByteCount()
	if op.IsError() {
		d.Syndrome, d.VendorSyndrome = c.Syndrome().String(), c.VendorSyndrome()
	}
	if op.IsError() || op == CQEReq {
		d.QPN = c.QPN()
	}
	if op == CQEReqErr || op == CQEReq {
		d.WQEOpcode = c.SendOpcode().String()
	}
	return d
}
