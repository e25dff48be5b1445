//! OpenAPI schema of new flows, generated from the options of the command line.

use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::commands::{COMMANDS, Command, CommandOption, Language};
use super::flow::FlowId;

/// Placeholder for the schema of [`super::flow::NewFlow`], which [`new_flow`] replaces.
#[derive(ToSchema)]
#[schema(as = NewFlow)]
pub struct NewFlowSchema {}

/// Name of that schema.
pub const NEW_FLOW: &str = "NewFlow";

/// Builds the schema: one alternative per command, with its options.
pub fn new_flow(language: Language) -> RefOr<Schema> {
    let description = "Command with its options, as on the command line. Numbers with units are text (`512M`, `64MiB`, `10min`), options that can be given several times are lists, and flags are true or false.";
    let item = |all: OneOfBuilder, command| all.item(of(command, language));
    let each = COMMANDS.iter().fold(OneOfBuilder::new(), item);
    RefOr::T(Schema::OneOf(each.description(Some(description)).build()))
}

fn of(command: &Command, language: Language) -> RefOr<Schema> {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let host = "Name of the host to run on: a host of the session, or the agent's own name";
    let mut object = ObjectBuilder::new()
        .title(Some(command.name))
        .property("id", FlowId::schema())
        .required("id")
        .property("host", text().description(Some(host)).build())
        .property("command", text().enum_values(Some([command.name])).build())
        .required("command")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    for option in command.options(language) {
        if option.is_required {
            object = object.required(&option.name);
        }
        object = object.property(&option.name, of_option(&option));
    }
    object.build().into()
}

fn of_option(option: &CommandOption) -> RefOr<Schema> {
    let help = option.help.clone();
    if option.is_flag {
        let flag = ObjectBuilder::new().schema_type(Type::Boolean);
        return flag.description(help).build().into();
    }
    let value = || match option.choices.is_empty() {
        true => {
            let kinds = SchemaType::from_iter([Type::String, Type::Number]);
            ObjectBuilder::new().schema_type(kinds)
        }
        false => ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(option.choices.clone())),
    };
    if !option.is_list {
        return value().description(help).build().into();
    }
    let list = ArrayBuilder::new().items(value().build());
    let several = OneOfBuilder::new().item(value().build()).item(list.build());
    RefOr::T(Schema::OneOf(several.description(help).build()))
}
