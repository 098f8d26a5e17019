package main

import "slices"

// An object is a table, known by its location: a name may change hands, a location does not.
type object struct {
	id       string
	format   string
	versions []version // of Lance, by number
	snapshot string    // of Iceberg: the current snapshot of main, "" if there is none
	property string    // of Iceberg: the value that the last unconditional commit set
	undone   int64     // the item of the trash under which it came back last
}

type version struct {
	number  int64
	value   string
	deleted bool // a tombstone: the number is used up
}

type dropped struct {
	name  string
	table *object
}

// A state is everything that the clients of one namespace can see of it. It is never changed in place.
type state struct {
	names  map[string]*object
	trash  []dropped
	gone   bool  // the namespace is in the trash, with all that it holds
	undone int64 // the item of the trash under which the namespace came back last
}

func (s state) copy() state {
	names := make(map[string]*object, len(s.names)+1)
	for name, table := range s.names {
		names[name] = table
	}
	return state{names, s.trash, s.gone, s.undone}
}

func (o *object) find(number int64) (version, bool) {
	at, found := slices.BinarySearchFunc(o.versions, number, func(v version, n int64) int { return int(v.number - n) })
	if !found {
		return version{}, false
	}
	return o.versions[at], true
}

func (o *object) with(added version) *object {
	at, _ := slices.BinarySearchFunc(o.versions, added.number, func(v version, n int64) int { return int(v.number - n) })
	changed := *o
	changed.versions = slices.Insert(slices.Clone(o.versions), at, added)
	return &changed
}

func (o *object) live() []version {
	var live []version
	for _, v := range o.versions {
		if !v.deleted {
			live = append(live, v)
		}
	}
	return live
}

func equalObjects(a, b *object) bool {
	return a == b || a.id == b.id && a.snapshot == b.snapshot && a.property == b.property && a.undone == b.undone &&
		slices.Equal(a.versions, b.versions)
}

func equalStates(left, right any) bool {
	a, b := left.(state), right.(state)
	if a.gone != b.gone || a.undone != b.undone || len(a.names) != len(b.names) || len(a.trash) != len(b.trash) {
		return false
	}
	for name, table := range a.names {
		other := b.names[name]
		if other == nil || !equalObjects(table, other) {
			return false
		}
	}
	// The order in the trash tells nothing.
	for _, item := range a.trash {
		at := slices.IndexFunc(b.trash, func(other dropped) bool {
			return item.name == other.name && item.table.id == other.table.id
		})
		if at < 0 || !equalObjects(item.table, b.trash[at].table) {
			return false
		}
	}
	return true
}

// Step says whether the operation may have had this outcome in this state, and what it leaves.
func step(current, in, out any) (bool, any) {
	s, op, got := current.(state), in.(*operation), out.(output)
	if op.isRead() {
		return read(s, op, got), s
	}
	next, refusals := write(s, op, got)
	switch {
	case got.Error == "":
		return len(refusals) == 0, next
	case got.Error == "unavailable":
		return true, s // it says only that nothing changed
	default:
		return refusals[got.Error], s
	}
}

func read(s state, op *operation, got output) bool {
	if op.Kind == "names" {
		if s.gone {
			return got.Error == "missing"
		}
		var names []string
		for name, table := range s.names {
			if table.format == op.Format {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return got.Error == "" && slices.Equal(names, got.Names)
	}
	table := s.names[op.Name]
	if s.gone || table == nil || table.format != op.Format {
		return got.Error == "missing"
	}
	switch op.Kind {
	case "describe":
		v, found := table.find(op.Version)
		if !found || v.deleted {
			return got.Error == "no version"
		}
		return got.Error == "" && v.value == got.Value
	case "latest":
		live := table.live()
		if len(live) == 0 {
			return got.Error == "" && got.Version == 0
		}
		last := live[len(live)-1]
		return got.Error == "" && last.number == got.Version && last.value == got.Value
	case "list":
		return got.Error == "" && slices.EqualFunc(table.live(), got.Versions, func(v version, e entry) bool {
			return v.number == e.Version && v.value == e.Value
		})
	case "load":
		return got.Error == "" && table.id == got.ID && table.snapshot == got.Snapshot && table.property == got.Property
	}
	panic("unknown read: " + op.Kind)
}

// Write applies the steps in order. It returns all refusals that the steps give cause for: which of
// them a server names is its own choice.
func write(s state, op *operation, got output) (state, map[string]bool) {
	next, refusals := s.copy(), map[string]bool{}
	if s.gone && op.Kind != "undrop namespace" {
		return s, map[string]bool{"missing": true}
	}
	for _, action := range op.Steps {
		if refusal := apply(&next, op, action, got); refusal != "" {
			refusals[refusal] = true
		}
	}
	if len(refusals) > 0 {
		return s, refusals
	}
	return next, refusals
}

func apply(s *state, op *operation, a action, got output) string {
	table := s.names[a.Name]
	switch a.Do {
	case "create": // a table
		if table != nil {
			return "exists"
		}
		s.names[a.Name] = &object{id: a.ID, format: a.Format}
	case "add": // a version, if its number was never used
		if table == nil || table.format != "lance" {
			return "missing"
		}
		if got.Error == "elsewhere" && a.ID != table.id {
			return "elsewhere" // the manifest was staged for a table that is not there any more
		}
		if _, used := table.find(a.Version); used {
			return "conflict"
		}
		s.names[a.Name] = table.with(version{a.Version, a.Value, false})
	case "delete": // the versions from Version up to, not including, End
		if table == nil || table.format != "lance" {
			return "missing"
		}
		changed, count := *table, int64(0)
		changed.versions = slices.Clone(table.versions)
		for i, v := range changed.versions {
			if a.Version <= v.number && v.number < a.End && !v.deleted {
				changed.versions[i].deleted = true
				count++
			}
		}
		if len(changed.live()) == 0 || changed.live()[len(changed.live())-1] != table.live()[len(table.live())-1] {
			if got.Error == "newest" {
				return "newest" // a server may protect the newest version
			}
		}
		if len(op.Steps) == 1 && got.Error == "" && !got.Unanswered && got.Count != count {
			return "a wrong count"
		}
		s.names[a.Name] = &changed
	case "commit": // to Iceberg: swap the snapshot, or set the property without a requirement
		if table == nil || table.format != "iceberg" {
			return "missing"
		}
		if got.Error == "elsewhere" && a.ID != table.id {
			return "elsewhere"
		}
		changed := *table
		if a.Snapshot != "" {
			if table.snapshot != a.Expected {
				return "conflict"
			}
			changed.snapshot = a.Snapshot
		}
		if a.Property != "" {
			changed.property = a.Property
		}
		s.names[a.Name] = &changed
	case "rename":
		if table == nil || table.format != a.Format {
			return "missing"
		}
		if s.names[a.New] != nil {
			return "exists"
		}
		delete(s.names, a.Name)
		s.names[a.New] = table
	case "drop":
		if table == nil || a.Format != "" && table.format != a.Format {
			return "missing"
		}
		delete(s.names, a.Name)
		s.trash = append(slices.Clone(s.trash), dropped{a.Name, table})
	case "undrop":
		at := slices.IndexFunc(s.trash, func(item dropped) bool { return item.table.id == a.ID })
		if at < 0 || s.trash[at].table.undone >= a.Item {
			return "missing"
		}
		if table != nil {
			return "exists"
		}
		back := *s.trash[at].table
		back.undone = a.Item
		s.names[a.Name] = &back
		s.trash = slices.Delete(slices.Clone(s.trash), at, at+1)
	case "drop namespace": // and all that is in it
		s.gone = true
	case "undrop namespace":
		if !s.gone || s.undone >= a.Item {
			return "missing"
		}
		s.gone, s.undone = false, a.Item
	default:
		panic("unknown step: " + a.Do)
	}
	return ""
}
