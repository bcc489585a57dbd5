package rdma

import (
	"github.com/rdma-netstack/rdma-netstack/dv"
	"gvisor.dev/gvisor/pkg/buffer"
)

// Frames that came in several buffers of the ring, as jumbo frames do, are made one before anybody parses them. A frame that
// is delivered alone then needs no further copy.

// join makes each frame of the batch that lies in several buffers one of a single piece, and reports whether there was any.
func (w *worker) join(frames []dv.Packet) (any bool) {
	for i := range frames {
		p := &frames[i]
		if p.More == 0 {
			continue
		}
		v := buffer.NewView(p.Size())
		w.pieces = w.q.Segments(w.pieces[:0], p)
		for _, b := range w.pieces {
			v.Write(b)
		}
		w.joined[i], p.Data, p.More = v, v.AsSlice(), 0
		any = true
	}
	return any
}

// view is frame i, or its first end bytes, as a view of its own.
func (w *worker) view(i int16, end int) *buffer.View {
	frame, v := w.frames[i].Data, w.joined[i]
	if end == 0 {
		end = len(frame)
	}
	if v == nil {
		return buffer.NewViewWithData(frame[:end])
	}
	w.joined[i] = nil
	v.TrimFront(v.Size() - len(frame)) // what was taken off in front
	v.CapLength(end)
	return v
}

// unjoin lets go of joined frames that were not delivered alone. Nothing refers to them any more.
func (w *worker) unjoin(frames []dv.Packet) {
	for i := range frames {
		if v := w.joined[i]; v != nil {
			v.Release()
			w.joined[i] = nil
		}
	}
}
