package main

import (
	"context"
	"net/url"
	"os"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

type monodonProvider struct{}

func newProvider() provider.Provider { return monodonProvider{} }

func (monodonProvider) Metadata(_ context.Context, _ provider.MetadataRequest, response *provider.MetadataResponse) {
	response.TypeName = "monodon"
	response.Version = version
}

func (monodonProvider) Schema(_ context.Context, _ provider.SchemaRequest, response *provider.SchemaResponse) {
	response.Schema = schema.Schema{Attributes: map[string]schema.Attribute{
		"url": schema.StringAttribute{
			Optional:    true,
			Description: "The URL of the server, such as https://catalog.example.com. Default: MONODON_URL.",
		},
		"api_key": schema.StringAttribute{
			Optional:    true,
			Sensitive:   true,
			Description: "An API key. Default: MONODON_API_KEY.",
		},
	}}
}

type settings struct {
	URL    types.String `tfsdk:"url"`
	APIKey types.String `tfsdk:"api_key"`
}

func (monodonProvider) Configure(ctx context.Context, request provider.ConfigureRequest, response *provider.ConfigureResponse) {
	var values settings
	response.Diagnostics.Append(request.Config.Get(ctx, &values)...)
	if response.Diagnostics.HasError() {
		return
	}
	if values.URL.IsUnknown() || values.APIKey.IsUnknown() {
		response.Diagnostics.AddError("The URL and the key must be known before the plan", "Do not take them from resources of the same configuration.")
		return
	}
	address := setting(values.URL, "MONODON_URL")
	key := setting(values.APIKey, "MONODON_API_KEY")
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		response.Diagnostics.AddError("The URL of the server is missing or invalid", "Set `url`, or the environment variable MONODON_URL, to an address such as https://catalog.example.com.")
	}
	if key == "" {
		response.Diagnostics.AddError("The API key is missing", "Set the environment variable MONODON_API_KEY, or `api_key` from a sensitive variable.")
	}
	response.ResourceData = newClient(strings.TrimRight(address, "/"), key)
}

func setting(value types.String, variable string) string {
	if text := value.ValueString(); text != "" {
		return text
	}
	return os.Getenv(variable)
}

func (monodonProvider) DataSources(context.Context) []func() datasource.DataSource { return nil }

func (monodonProvider) Resources(context.Context) []func() resource.Resource {
	var constructors []func() resource.Resource
	for _, name := range declaredNames() {
		constructors = append(constructors, func() resource.Resource {
			return &declaredResource{name: name, declaration: declarations[name]}
		})
	}
	return constructors
}
