package standin

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"fairlead.dev/fairlead/internal/netdev/ovsdb"
)

// bridge is the only bridge of a Switch: Neutron's integration bridge.
const bridge = "br-int"

// Switch is the database of an Open vSwitch with the bridge br-int. It executes the
// transactions by which the node daemon plugs ports, and refuses any other.
type Switch struct {
	// Plugged is called for each port of Neutron that a node has plugged, or unplugged.
	Plugged func(port string, is bool)

	mu   sync.Mutex
	ids  int
	rows map[string]*row // by UUID; a port has the UUID of its interface
}

// row is an interface.
type row struct {
	name string
	ids  ovsdb.Value // external_ids
}

// Serve answers connections until the listener is closed, and returns the error of Accept.
func (s *Switch) Serve(listener net.Listener) error {
	for {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			s.answer(c)
		}()
	}
}

// answer answers the requests of a connection. Any request but a transaction ends it.
func (s *Switch) answer(c net.Conn) {
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for {
		var request struct {
			ID     json.RawMessage   `json:"id"`
			Method string            `json:"method"`
			Params []json.RawMessage `json:"params"`
		}
		if in.Decode(&request) != nil || request.Method != "transact" || len(request.Params) == 0 {
			return
		}
		result := s.transact(request.Params[1:])
		if out.Encode(map[string]any{"id": request.ID, "result": result, "error": nil}) != nil {
			return
		}
	}
}

// transaction is the execution of a list of operations.
type transaction struct {
	*Switch
	rows    map[string]*row // as they are after the commit
	pending *row            // the interface that is inserted
}

// transact executes operations, all or none, and returns the results of RFC 7047.
func (s *Switch) transact(params []json.RawMessage) []any {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &transaction{Switch: s, rows: map[string]*row{}}
	maps.Copy(t.rows, s.rows)
	var results []any
	for _, raw := range params {
		var op ovsdb.Operation
		err := json.Unmarshal(raw, &op)
		if op.Where == nil {
			op.Where = &[]ovsdb.Condition{}
		}
		var result any
		if err == nil {
			result, err = t.execute(op)
		}
		if err != nil {
			return append(results, map[string]string{"error": "not executed", "details": err.Error()})
		}
		results = append(results, result)
	}
	before := s.rows
	s.rows = t.rows
	for id, r := range before {
		if t.rows[id] == nil {
			s.Plugged(r.ids.Pairs["iface-id"], false)
		}
	}
	for id, r := range t.rows {
		if before[id] == nil {
			s.Plugged(r.ids.Pairs["iface-id"], true)
		}
	}
	return results
}

func (t *transaction) execute(op ovsdb.Operation) (any, error) {
	switch op.Op + " " + op.Table {
	case "comment ", "insert Port", "wait Open_vSwitch": // nothing to wait for: no vswitchd
		return map[string]any{}, nil
	case "select Bridge", "select Port", "select Open_vSwitch", "select Interface":
		return t.read(op)
	case "mutate Open_vSwitch":
		return map[string]any{"count": 1}, nil
	case "wait Interface":
		return t.wait(op)
	case "insert Interface":
		name, err := valueOf(op.Row["name"])
		if err != nil {
			return nil, err
		}
		t.pending = &row{name: name.Text()}
		t.pending.ids, err = valueOf(op.Row["external_ids"])
		return map[string]any{}, err
	case "mutate Bridge":
		return t.mutatePorts(op)
	}
	return nil, fmt.Errorf("%s of %q is not an operation of the stand-in", op.Op, op.Table)
}

// read returns the rows of a table. All columns are returned: a client ignores the others.
func (t *transaction) read(op ovsdb.Operation) (any, error) {
	list := []map[string]any{}
	selected, err := t.selected(op)
	if err != nil {
		return nil, err
	}
	var ports []any
	for _, id := range selected {
		ports = append(ports, ovsdb.UUID(id))
		switch op.Table {
		case "Port":
			list = append(list, map[string]any{"_uuid": ovsdb.UUID(id), "interfaces": ovsdb.UUID(id)})
		case "Interface":
			list = append(list, map[string]any{
				"_uuid": ovsdb.UUID(id), "name": t.rows[id].name, "external_ids": ovsdb.Map(t.rows[id].ids.Pairs), "error": ovsdb.Set(),
			})
		}
	}
	switch op.Table {
	case "Bridge":
		list = append(list, map[string]any{"name": bridge, "datapath_type": "system", "ports": ovsdb.Set(ports...)})
	case "Open_vSwitch":
		list = append(list, map[string]any{"other_config": ovsdb.Map(nil), "next_cfg": 1})
	}
	return map[string]any{"rows": list}, nil
}

// selected returns the UUIDs of the interfaces that the conditions of an operation select, in
// their order.
func (t *transaction) selected(op ovsdb.Operation) ([]string, error) {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(t.rows)) {
		is := true
		for _, c := range *op.Where {
			value, err := valueOf(c[2])
			if err != nil {
				return nil, err
			}
			switch fmt.Sprint(c[0], " ", c[1]) {
			case "name ==":
				is = is && t.rows[id].name == value.Text()
			case "external_ids includes":
				for k, v := range value.Pairs {
					is = is && t.rows[id].ids.Pairs[k] == v
				}
			default:
				return nil, fmt.Errorf("condition %v is not one of the stand-in", c)
			}
		}
		if is {
			out = append(out, id)
		}
	}
	return out, nil
}

// wait fails unless the names of the selected interfaces are those of the operation.
func (t *transaction) wait(op ovsdb.Operation) (any, error) {
	ids, err := t.selected(op)
	if err != nil {
		return nil, err
	}
	var has, wants []string
	for _, id := range ids {
		has = append(has, t.rows[id].name)
	}
	if op.Rows != nil {
		for _, r := range *op.Rows {
			wants = append(wants, fmt.Sprint(r["name"]))
		}
	}
	slices.Sort(has)
	slices.Sort(wants)
	if !slices.Equal(has, wants) {
		return nil, fmt.Errorf("the interfaces are %v, not %v", has, wants)
	}
	return map[string]any{}, nil
}

// mutatePorts removes ports from the bridge, or adds the port that is inserted.
func (t *transaction) mutatePorts(op ovsdb.Operation) (any, error) {
	for _, c := range *op.Where {
		if c[0] != "name" || c[2] != bridge {
			return map[string]any{"count": 0}, nil
		}
	}
	for _, m := range op.Mutations {
		if m[1] == "insert" && t.pending != nil {
			t.ids++
			t.rows[fmt.Sprintf("%08x-0000-4000-8000-%012[1]x", t.ids)] = t.pending
			continue
		}
		gone, err := valueOf(m[2])
		if err != nil {
			return nil, err
		}
		for _, id := range gone.Elements {
			delete(t.rows, id)
		}
	}
	return map[string]any{"count": 1}, nil
}

// valueOf decodes a value as it is in JSON.
func valueOf(decoded any) (v ovsdb.Value, err error) {
	raw, err := json.Marshal(decoded)
	if err != nil {
		return v, err
	}
	err = json.Unmarshal(raw, &v)
	return v, err
}
