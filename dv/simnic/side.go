package simnic

import "sync/atomic"

// side is one of the two places a wire plugs in.
type side struct{ wire atomic.Pointer[Wire] }

// plug takes w into use. A second wire is refused.
func (s *side) plug(w Wire, recv func([]Frame)) error {
	if !s.wire.CompareAndSwap(nil, &w) {
		return refuse(StatusBadState, "something is plugged in already")
	}
	if err := w.Start(recv); err != nil {
		s.wire.Store(nil)
		return err
	}
	return nil
}

// unplug closes the wire.
func (s *side) unplug() error {
	if w := s.wire.Swap(nil); w != nil {
		return (*w).Close()
	}
	return nil
}
