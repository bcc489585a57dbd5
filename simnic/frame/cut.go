package frame

// Cut turns f into the frames that a cable carries: an unsegmented frame into its segments, with
// all checksums complete. emit is called in order; its frame is valid until it returns. buf is
// scratch memory of the caller that grows as needed. An ordinary frame with complete checksums is
// passed on without a copy; one whose headers cannot be parsed is passed on unsegmented.
func Cut(f Frame, buf *[]byte, emit func(Frame)) {
	f.MeasureHeader()
	switch {
	case f.GSO != GSONone && int(f.HdrLen) <= min(len(f.Data), MaxHeader):
		f.emitSegments(buf, emit)
	case f.NeedsCsum:
		*buf = append((*buf)[:0], f.Data...)
		f.Data, f.GSO = *buf, GSONone
		f.CompleteChecksum()
		emit(Frame{Data: f.Data})
	default:
		emit(Frame{Data: f.Data})
	}
}

// emitSegments emits the segments of an unsegmented frame.
func (f *Frame) emitSegments(buf *[]byte, emit func(Frame)) {
	var headers [MaxHeader]byte
	template := headers[:copy(headers[:], f.Data[:f.HdrLen])]
	payload := f.Data[f.HdrLen:]
	s, ok := NewSegmenter(template, int(f.MSS), len(payload))
	if !ok {
		emit(Frame{Data: f.Data})
		return
	}
	size := len(template) + int(f.MSS)
	if cap(*buf) < size {
		*buf = make([]byte, size)
	}
	for g := s.Packets(); g.Next(); {
		part := payload[g.At : g.At+g.Len]
		b := g.Header((*buf)[:size], Sum(part))
		emit(Frame{Data: append(b, part...)})
	}
}
