package rdma

import (
	"gvisor.dev/gvisor/pkg/buffer"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// Frames that came in several buffers of the ring, as jumbo frames do, are made one before anybody
// parses them. A frame that is delivered alone then needs no further copy.

// linearize makes each frame of the batch that lies in several buffers one of a single piece, and
// reports whether there was any.
func (w *worker) linearize(frames []dv.Packet) (any bool) {
	for i := range frames {
		p := &frames[i]
		if p.More == 0 {
			continue
		}
		v := buffer.NewView(p.Size())
		w.segments = w.q.Segments(w.segments[:0], p)
		for _, b := range w.segments {
			v.Write(b)
		}
		w.linear[i], p.Data, p.More = v, v.AsSlice(), 0
		any = true
	}
	return any
}

// view is frame i, or its first end bytes, as a view of its own.
func (w *worker) view(i int16, end int) *buffer.View {
	frame, v := w.frames[i].Data, w.linear[i]
	if end == 0 {
		end = len(frame)
	}
	if v == nil {
		return buffer.NewViewWithData(frame[:end])
	}
	w.linear[i] = nil
	v.TrimFront(v.Size() - len(frame)) // what was taken off in front
	v.CapLength(end)
	return v
}

// releaseLinear releases linearized frames that were not delivered alone. Nothing refers to them
// any more.
func (w *worker) releaseLinear(frames []dv.Packet) {
	for i := range frames {
		if v := w.linear[i]; v != nil {
			v.Release()
			w.linear[i] = nil
		}
	}
}
