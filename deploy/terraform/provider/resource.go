package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// declaredResource sends the requests that resources.json declares for a resource.
type declaredResource struct {
	name        string
	declaration declaration
	client      *client
}

var (
	_ resource.ResourceWithConfigure   = (*declaredResource)(nil)
	_ resource.ResourceWithImportState = (*declaredResource)(nil)
)

func (r *declaredResource) Metadata(_ context.Context, request resource.MetadataRequest, response *resource.MetadataResponse) {
	response.TypeName = request.ProviderTypeName + "_" + r.name
}

func (r *declaredResource) Schema(_ context.Context, _ resource.SchemaRequest, response *resource.SchemaResponse) {
	response.Schema = r.declaration.schema()
}

func (r *declaredResource) Configure(_ context.Context, request resource.ConfigureRequest, _ *resource.ConfigureResponse) {
	if configured, ok := request.ProviderData.(*client); ok {
		r.client = configured
	}
}

func (r *declaredResource) Create(ctx context.Context, request resource.CreateRequest, response *resource.CreateResponse) {
	planned, values, err := r.planned(request.Plan.Raw, request.Config.Raw)
	if err == nil {
		err = r.create(ctx, values)
	}
	if err == nil {
		response.State.Raw, err = r.stored(ctx, request.Plan.Schema.Type().TerraformType(ctx), planned, values)
	}
	report(&response.Diagnostics, "Cannot create "+r.name, err)
}

func (r *declaredResource) create(ctx context.Context, values map[string]any) error {
	_, err := r.call(ctx, r.declaration.Create, values, nil)
	if r.declaration.Activate == nil || !hasStatus(err, http.StatusConflict) {
		return err
	}
	existing, readErr := r.read(ctx, values)
	if readErr != nil {
		return readErr
	}
	if existing != nil {
		return fmt.Errorf("%w. Import it", err)
	}
	_, err = r.call(ctx, *r.declaration.Activate, values, nil)
	return err
}

func (r *declaredResource) Read(ctx context.Context, request resource.ReadRequest, response *resource.ReadResponse) {
	state, values, err := attributesOf(request.State.Raw)
	if err != nil {
		report(&response.Diagnostics, "Cannot read "+r.name, err)
		return
	}
	answer, err := r.read(ctx, values)
	if err == nil && answer == nil {
		response.State.RemoveResource(ctx)
		return
	}
	if err == nil {
		response.State.Raw, err = r.refreshed(request.State.Schema.Type().TerraformType(ctx), state, values, answer)
	}
	report(&response.Diagnostics, "Cannot read "+r.name, err)
}

func (r *declaredResource) Update(ctx context.Context, request resource.UpdateRequest, response *resource.UpdateResponse) {
	planned, values, err := r.planned(request.Plan.Raw, request.Config.Raw)
	var prior map[string]any
	if err == nil {
		_, prior, err = attributesOf(request.State.Raw)
	}
	if err == nil && r.declaration.Update != nil {
		_, err = r.call(ctx, *r.declaration.Update, values, prior)
	}
	if err == nil {
		response.State.Raw, err = r.stored(ctx, request.Plan.Schema.Type().TerraformType(ctx), planned, values)
	}
	report(&response.Diagnostics, "Cannot change "+r.name, err)
}

func (r *declaredResource) Delete(ctx context.Context, request resource.DeleteRequest, response *resource.DeleteResponse) {
	_, values, err := attributesOf(request.State.Raw)
	if err == nil {
		_, err = r.call(ctx, r.declaration.Delete, values, values)
	}
	if !hasStatus(err, http.StatusNotFound) {
		report(&response.Diagnostics, "Cannot delete "+r.name, err)
	}
}

// ImportState takes the attributes that identify a resource as JSON: {"namespace": ["prod"], "principal": "etl"}.
func (r *declaredResource) ImportState(ctx context.Context, request resource.ImportStateRequest, response *resource.ImportStateResponse) {
	kind := response.State.Schema.Type().TerraformType(ctx).(tftypes.Object)
	state := nulls(kind)
	given := map[string]any{}
	err := json.Unmarshal([]byte(request.ID), &given)
	if err != nil {
		err = fmt.Errorf("the ID must be a JSON object with %q: %w", r.declaration.Key, err)
	}
	for _, name := range r.declaration.Key {
		if err == nil && given[name] == nil {
			err = fmt.Errorf("the ID has no %q", name)
		}
		if err == nil {
			state[name], err = toValue(kind.AttributeTypes[name], given[name])
		}
	}
	if err == nil {
		response.State.Raw = tftypes.NewValue(kind, state)
	}
	report(&response.Diagnostics, "Cannot import "+r.name, err)
}

func report(diagnostics *diag.Diagnostics, summary string, err error) {
	if err != nil {
		diagnostics.AddError(summary, err.Error())
	}
}

func (r *declaredResource) call(ctx context.Context, op operation, values, prior map[string]any) (map[string]any, error) {
	path, err := fill(op.Path, op.Query, values)
	if err != nil {
		return nil, err
	}
	if op.Body == nil {
		return r.client.send(ctx, op.Method, path, nil)
	}
	body := map[string]any{}
	for name, from := range op.Body {
		item, isSent, err := r.item(ctx, from, values, prior)
		if err != nil {
			return nil, err
		}
		if isSent {
			body[name] = item
		}
	}
	return r.client.send(ctx, op.Method, path, body)
}

// item returns a field of a body, and whether it is sent.
func (r *declaredResource) item(ctx context.Context, from field, values, prior map[string]any) (any, bool, error) {
	switch {
	case from.attribute != "":
		isSent := values[from.attribute] != nil || !r.declaration.Attributes[from.attribute].Unmanaged
		return values[from.attribute], isSent, nil
	case from.Constant != nil:
		return from.Constant, true, nil
	case from.RemovedKeys != "":
		removed := []any{}
		for name := range mapOf(prior[from.RemovedKeys]) {
			if _, isKept := mapOf(values[from.RemovedKeys])[name]; !isKept {
				removed = append(removed, name)
			}
		}
		return removed, true, nil
	case from.WithRemoved != "":
		answer, err := r.read(ctx, values)
		if err != nil {
			return nil, false, err
		}
		items := emptied(mapOf(r.declaration.Read.Values[from.WithRemoved].item(answer)))
		for name, item := range mapOf(values[from.WithRemoved]) {
			items[name] = item
		}
		return items, true, nil
	case from.AllRemoved != "":
		return emptied(mapOf(values[from.AllRemoved])), true, nil
	case from.Object != nil:
		isSent := values[from.With] != nil
		if isSent && prior != nil && len(from.IfChanged) > 0 {
			isSent = false
			for _, name := range from.IfChanged {
				isSent = isSent || canonical(values[name], false) != canonical(prior[name], false)
			}
		}
		items := map[string]any{}
		for name, attribute := range from.Object {
			if values[attribute] != nil {
				items[name] = values[attribute]
			}
		}
		return items, isSent, nil
	}
	return nil, false, nil
}

func mapOf(item any) map[string]any {
	items, _ := item.(map[string]any)
	return items
}

// emptied returns no values for every key, which removes them.
func emptied(items map[string]any) map[string]any {
	removed := map[string]any{}
	for name := range items {
		removed[name] = []any{}
	}
	return removed
}

// read returns the object of an answer; nil if it does not exist.
func (r *declaredResource) read(ctx context.Context, values map[string]any) (map[string]any, error) {
	reading := r.declaration.Read
	path, err := fill(reading.Path, reading.Query, values)
	if err != nil {
		return nil, err
	}
	answer, err := r.client.send(ctx, http.MethodGet, path, nil)
	if hasStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if reading.FirstOf != "" {
		items, _ := answer[reading.FirstOf].([]any)
		if len(items) == 0 {
			return nil, nil
		}
		answer = mapOf(items[0])
	}
	for name, item := range reading.AbsentIf {
		if answer[name] == item {
			return nil, nil
		}
	}
	for name, item := range reading.AbsentUnless {
		if answer[name] != item {
			return nil, nil
		}
	}
	return answer, nil
}

func (s source) item(answer map[string]any) any {
	if s.DirectLabels == "" {
		return answer[s.field]
	}
	labels := map[string]any{}
	given, _ := answer[s.field].([]any)
	for _, each := range given {
		if label := mapOf(each); label["is_inherited"] == false {
			labels[fmt.Sprint(label["key"])] = label["values"]
		}
	}
	return labels
}

// stored returns the state after a change: the planned values, and those that only the server knows.
func (r *declaredResource) stored(ctx context.Context, kind tftypes.Type, planned map[string]tftypes.Value, values map[string]any) (tftypes.Value, error) {
	answer, err := r.read(ctx, values)
	if err != nil {
		return tftypes.Value{}, err
	}
	if answer == nil {
		return tftypes.Value{}, fmt.Errorf("the server does not return it after the change")
	}
	object := kind.(tftypes.Object)
	for name, value := range planned {
		if value.IsKnown() {
			continue
		}
		if planned[name], err = toValue(object.AttributeTypes[name], r.declaration.Read.Values[name].item(answer)); err != nil {
			return tftypes.Value{}, err
		}
	}
	return validated(object, planned)
}

// refreshed returns the state with the values of the server. Equal values keep their form.
func (r *declaredResource) refreshed(kind tftypes.Type, state map[string]tftypes.Value, values, answer map[string]any) (tftypes.Value, error) {
	object := kind.(tftypes.Object)
	result := map[string]tftypes.Value{}
	for name, value := range state {
		result[name] = value
		from, isRead := r.declaration.Read.Values[name]
		declared := r.declaration.Attributes[name]
		if !isRead || (declared.Unmanaged && values[name] == nil) {
			continue
		}
		item := from.item(answer)
		if from.Declared != "" && values[name] != nil {
			item = restricted(mapOf(item), mapOf(values[name]))
		}
		compared := values[name]
		if from.Stored != "" {
			compared = values[from.Stored]
		}
		isSet := declared.Type == "set(string)" || declared.Type == "map(set(string))"
		if compared != nil && values[name] != nil && canonical(item, isSet) == canonical(compared, isSet) {
			continue
		}
		var err error
		if result[name], err = toValue(object.AttributeTypes[name], item); err != nil {
			return tftypes.Value{}, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return validated(object, result)
}

func restricted(items, declared map[string]any) map[string]any {
	result := map[string]any{}
	for name := range declared {
		if item, exists := items[name]; exists {
			result[name] = item
		}
	}
	return result
}

// planned returns the planned attributes, and the same as values of JSON with those that only the configuration has.
func (r *declaredResource) planned(plan, config tftypes.Value) (map[string]tftypes.Value, map[string]any, error) {
	attributes, values, err := attributesOf(plan)
	if err != nil {
		return nil, nil, err
	}
	_, configured, err := attributesOf(config)
	for name, declared := range r.declaration.Attributes {
		if declared.WriteOnly && err == nil {
			values[name] = configured[name]
		}
	}
	return attributes, values, err
}

func attributesOf(raw tftypes.Value) (map[string]tftypes.Value, map[string]any, error) {
	var attributes map[string]tftypes.Value
	if err := raw.As(&attributes); err != nil {
		return nil, nil, err
	}
	values := map[string]any{}
	for name, attribute := range attributes {
		var err error
		if values[name], err = fromValue(attribute); err != nil {
			return nil, nil, err
		}
	}
	return attributes, values, nil
}

func nulls(kind tftypes.Object) map[string]tftypes.Value {
	attributes := map[string]tftypes.Value{}
	for name, inner := range kind.AttributeTypes {
		attributes[name] = tftypes.NewValue(inner, nil)
	}
	return attributes
}
